"""Files as memory, without a descriptor for each: Python's own `mmap` keeps one open as long as the map lives, and a
run maps as many files as it has groups waiting."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .errors import WireError


def map_file(path: Path, *, private: bool = False) -> memoryview:
    """The bytes of a file, as they are now. They live as long as any view of them, also when the file is
    removed. `private`: views may be written to, which changes no file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        length = os.fstat(descriptor).st_size
        if not length:
            raise WireError(f"{path.name} is empty")
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if private else 0)
        sharing = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
        address = _libc().mmap(None, length, protection, sharing, descriptor, 0)
        if address == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), str(path))
    finally:
        os.close(descriptor)
    return np.asarray(_Region(address, length, readonly=not private)).data


class _Region:
    """Pages that are given back with the last array that stands on them."""

    def __init__(self, address: int, length: int, *, readonly: bool) -> None:
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (length,), "data": (address, readonly)}
        weakref.finalize(self, _libc().munmap, address, length)


_FAILED = ctypes.c_void_p(-1).value


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc
