"""Files of a box, read and written from outside through its root, which no link leads out of.

The kernel resolves each path with the box's root as its root (`openat2`), so a link to `/etc/passwd` is the box's own
`/etc/passwd`, and a program that swaps links while we look gains nothing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from rollwright.wire import RuntimeFault

from .layout import WORKSPACE

_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10
_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def read_file(root: int, path: str, limit: int) -> bytes:
    """The content of a regular file below `root` (a descriptor); RuntimeFault for anything else."""
    with _opened(root, path, os.O_RDONLY) as fd, open(fd, "rb", closefd=False) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise RuntimeFault(f"file {path!r} is over {limit} bytes; read it in parts with a command")
    return data


def write_file(root: int, path: str, data: bytes) -> None:
    """Make or replace a file, and the directories above it."""
    _make_parents(root, path)
    with _opened(root, path, os.O_WRONLY | os.O_CREAT) as fd, open(fd, "wb", closefd=False) as file:
        file.truncate(0)
        file.write(data)


def is_directory(root: int, path: str) -> bool:
    try:
        os.close(_open(root, _whole(path), os.O_PATH | os.O_DIRECTORY))
    except OSError:
        return False
    return True


def _make_parents(root: int, path: str) -> None:
    made = ""
    try:
        for part in _whole(path).split("/")[1:-1]:
            above, made = made, f"{made}/{part}"
            try:
                fd = _open(root, made, os.O_PATH | os.O_DIRECTORY)
            except FileNotFoundError:
                fd = _open(root, above or "/", os.O_PATH | os.O_DIRECTORY)
                os.mkdir(part, 0o755, dir_fd=fd)
            os.close(fd)
    except OSError as error:
        raise RuntimeFault(f"could not make the directory of {path!r}: {error.strerror}") from error


@contextmanager
def _opened(root: int, path: str, flags: int) -> Iterator[int]:
    try:
        # Without O_NONBLOCK a named pipe in the place of a file would hold the thread.
        fd = _open(root, _whole(path), flags | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise RuntimeFault(f"{path!r} is not a file")
            yield fd
        finally:
            os.close(fd)
    except OSError as error:
        raise RuntimeFault(f"file {path!r}: {error.strerror or error}") from error


def _open(root: int, path: str, flags: int) -> int:
    how = _How(flags | os.O_CLOEXEC, 0o644 if flags & os.O_CREAT else 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    while True:
        fd: int = _libc.syscall(_SYS_OPENAT2, root, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return fd
        # EAGAIN: something on the way was renamed while the kernel looked.
        if (number := ctypes.get_errno()) not in (errno.EINTR, errno.EAGAIN):
            raise OSError(number, os.strerror(number))


def _whole(path: str) -> str:
    if "\0" in path:
        raise RuntimeFault("a path holds a NUL byte")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise RuntimeFault(f"a path is no name of a file: {error}") from error
    return os.path.join(WORKSPACE, path)
