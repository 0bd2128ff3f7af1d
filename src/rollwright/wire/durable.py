"""Small files that are there whole or not at all, and directories that one process writes to. Everything blocks."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from .errors import UsageError


def replace_file(path: Path, data: bytes) -> None:
    """Returns when `path` holds `data` and would after a power cut. Two writers at once both leave a whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        with open(unfinished, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """A rename is durable when its directory is."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hold_directory(path: Path) -> int:
    """Be the one process that writes to `path`, until the descriptor is closed. UsageError if another one is."""
    descriptor = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(f"another process is writing to {path}; wait for it or name another directory") from None
    return descriptor
