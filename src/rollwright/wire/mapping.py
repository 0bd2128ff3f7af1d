"""Files as memory, without a descriptor for each: Python's own `mmap` keeps one open as long as the map lives, and a
run maps as many files as it has groups waiting.

The last view of a map may die anywhere, on an event loop as well. Giving the pages back takes a while, and where the
file is removed by then the kernel frees all of it at that moment: a second for two gigabytes. So a thread does it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from .errors import WireError


class Home(NamedTuple):
    """Where in a file some memory is from."""

    path: Path
    inode: tuple[int, int]
    """Device and number, since another file may have the name by now."""
    offset: int


def map_file(path: Path, *, private: bool = False) -> memoryview:
    """The bytes of a file, as they are now. They live as long as any view of them, also when the file is
    removed. `private`: views may be written to, which changes no file."""
    _giver.wake()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        stat = os.fstat(descriptor)
        length = stat.st_size
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
    home = None if private else Home(path, (stat.st_dev, stat.st_ino), 0)
    return np.asarray(_Region(address, length, home)).data


def home_of(buffer: memoryview) -> Home | None:
    """The place in a file that `buffer` shows, if it shows a map of one that is not private."""
    owner: Any = buffer
    while isinstance(owner, memoryview | np.ndarray):
        owner = owner.obj if isinstance(owner, memoryview) else owner.base
    if not isinstance(owner, _Region) or owner.home is None or not len(buffer):
        return None
    return owner.home._replace(offset=_address(np.frombuffer(buffer, np.uint8)) - _address(owner))


class _Region:
    """Pages that are given back with the last array that stands on them."""

    def __init__(self, address: int, length: int, home: Home | None) -> None:
        place = (address, home is not None)
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (length,), "data": place}
        self.home = home
        weakref.finalize(self, _giver.later.put, partial(_libc().munmap, address, length)).atexit = False


class _Giver:
    """Gives pages back to the system, one map after another."""

    def __init__(self) -> None:
        self.later: SimpleQueue[Callable[[], object]] = SimpleQueue()
        """Whoever is interrupted by the death of a view may put into it, wherever he was."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """There is a thread from now on, also in a process that was forked."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._give, name="unmapping", daemon=True)
                self._thread.start()

    def _give(self) -> None:
        while True:
            self.later.get()()


_giver = _Giver()
_FAILED = ctypes.c_void_p(-1).value


def _address(exporter: Any) -> int:
    address: int = exporter.__array_interface__["data"][0]
    return address


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc
