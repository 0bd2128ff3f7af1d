"""Directories for what does not fit into memory, each its owner's alone, and freed after an owner that was killed.

The owner holds a lock on its directory, which the kernel lets go of with the process, however that ends. So whoever
gets the lock of a directory knows that nobody uses it. Where the file system knows no locks, nothing is swept.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

_PREFIX = "rollwright-images-"
_TRIES = 100


class SpillDirectory:
    """A new directory, readable by its owner alone. OSError where there is no room for one."""

    def __init__(self) -> None:
        for _ in range(_TRIES):
            path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            lock = _locked(path)
            # Between its making and its lock a sweep may have taken it for one that was left.
            if lock is not None and _is_at(lock, path):
                self.path, self._lock = path, lock
                return
            if lock is not None:
                os.close(lock)
        raise OSError(errno.EBUSY, f"no directory in {tempfile.gettempdir()} could be kept from sweepers")

    def close(self) -> None:
        """Remove it. Idempotent."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(lock)


def left_spills() -> list[Path]:
    """The directories of owners that are gone. It only looks. Blocks on the disk."""
    return [path for path in _spills() if _while_left(path, lambda _: True)]


def sweep_spills() -> int:
    """Remove those, and say how many. Blocks on the disk."""
    return sum(_while_left(path, _removed) for path in _spills())


def _spills() -> list[Path]:
    return sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"))


def _while_left(path: Path, act: Callable[[Path], bool]) -> bool:
    """What `act` says of a directory that nobody uses, and that nobody else takes meanwhile; False of any other."""
    try:
        if path.lstat().st_uid != os.geteuid():
            return False
        lock = _locked(path, or_nothing=True)
    except OSError:
        return False
    if lock is None:
        return False
    try:
        return act(path)
    finally:
        os.close(lock)


def _removed(path: Path) -> bool:
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


def _locked(path: Path, *, or_nothing: bool = False) -> int | None:
    """A descriptor of the directory, with its lock; None if another has the lock. Where there are no locks the
    descriptor comes without one, unless it is that `or_nothing`."""
    fd = -1
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if fd < 0:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if or_nothing or isinstance(error, BlockingIOError):
            os.close(fd)
            return None
    return fd


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False
