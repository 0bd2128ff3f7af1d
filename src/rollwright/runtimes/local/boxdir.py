"""The private directory of a box: a workspace, a HOME and a place for temporary files, and nobody else's business.

Paths that a caller names are resolved, links included, and must end inside one of the three; the file that was really
opened is checked once more, since a program in the box may swap a link between the two looks.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from rollwright.wire import RuntimeFault

PARTS = ("workspace", "home", "tmp")


@dataclass(frozen=True, slots=True)
class BoxDir:
    """`root` has no links in it."""

    root: str

    def make(self) -> None:
        try:
            os.mkdir(self.root, 0o700)
            self._make_parts()
        except OSError as error:
            raise RuntimeFault(f"could not make the box {self.root!r}: {error.strerror}") from error

    @property
    def workspace(self) -> str:
        return os.path.join(self.root, "workspace")

    @property
    def home(self) -> str:
        return os.path.join(self.root, "home")

    @property
    def tmp(self) -> str:
        return os.path.join(self.root, "tmp")

    def resolve(self, path: str) -> str:
        """The real place of `path` (relative to the workspace, or absolute); RuntimeFault outside of the box."""
        if "\0" in path:
            raise RuntimeFault("a path holds a NUL byte")
        real = os.path.realpath(os.path.join(self.workspace, path))
        if not self._holds(real):
            raise RuntimeFault(f"path {path!r} leads out of the box")
        return real

    def read(self, path: str, limit: int) -> bytes:
        with self._opened(path, os.O_RDONLY) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise RuntimeFault(f"file {path!r} is over {limit} bytes; read it in parts with a command")
        return data

    def write(self, path: str, data: bytes) -> None:
        """Make or replace a file, and the directories above it."""
        real = self.resolve(path)
        try:
            os.makedirs(os.path.dirname(real), exist_ok=True)
        except OSError as error:
            raise RuntimeFault(f"could not make the directory of {path!r}: {error.strerror}") from error
        with self._opened(path, os.O_WRONLY | os.O_CREAT) as file:
            file.truncate(0)
            file.write(data)

    def there(self) -> bool:
        return os.path.isdir(self.workspace)

    def _as_made(self) -> bool:
        return all(_is_private_dir(os.path.join(self.root, part)) for part in PARTS)

    def renew(self) -> None:
        """Empty everything and see that it is as it was after `make`."""
        try:
            clear(self.root)
            self._make_parts()
            left = sorted(os.listdir(self.root)) != sorted(PARTS) or any(
                os.listdir(os.path.join(self.root, part)) for part in PARTS
            )
        except OSError as error:
            raise RuntimeFault(f"could not empty the box: {error}") from error
        if left or not self._as_made():
            raise RuntimeFault("the box is not empty after a reset")

    def remove(self) -> None:
        """Remove the box, whatever is in it. Nothing to do where there is none."""
        try:
            if os.path.lexists(self.root) and not self._remove_empty():
                clear(self.root)
                os.rmdir(self.root)
        except OSError as error:
            # Another sweep may have been faster. What is still there is not removed.
            if os.path.lexists(self.root):
                raise RuntimeFault(f"could not remove the box: {error}") from error

    def _remove_empty(self) -> bool:
        """The short way for a box that holds nothing."""
        try:
            for part in PARTS:
                os.rmdir(os.path.join(self.root, part))
            os.rmdir(self.root)
        except OSError:
            return False
        return True

    def _make_parts(self) -> None:
        for part in PARTS:
            os.mkdir(os.path.join(self.root, part), 0o700)

    def _holds(self, real: str) -> bool:
        return any(real == (top := os.path.join(self.root, part)) or real.startswith(top + "/") for part in PARTS)

    @contextmanager
    def _opened(self, path: str, flags: int) -> Iterator[BinaryIO]:
        real = self.resolve(path)
        try:
            # Without O_NONBLOCK a named pipe in the place of a file would hold the thread.
            fd = os.open(real, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
            with open(fd, "rb" if flags == os.O_RDONLY else "wb") as file:
                self._check_opened(fd, path)
                yield file
        except OSError as error:
            raise RuntimeFault(f"file {path!r}: {error.strerror or error}") from error

    def _check_opened(self, fd: int, path: str) -> None:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise RuntimeFault(f"{path!r} is not a file")
        if os.path.isdir("/proc/self/fd") and not self._holds(os.readlink(f"/proc/self/fd/{fd}")):
            raise RuntimeFault(f"path {path!r} leads out of the box")


def clear(directory: str) -> None:
    """Empty `directory`, also when permissions were taken away and however deep it is.

    Directories found inside are moved up before they are emptied, so that no path grows and nothing recurses.
    """
    os.chmod(directory, 0o700)
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        directories = _unlink_files(top)
        prefix, serial = f".{secrets.token_hex(8)}-", 0
        while directories:
            name = directories.pop()
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
            try:
                for inner in _unlink_files(below):
                    serial += 1
                    moved = f"{prefix}{serial}"
                    os.rename(inner, moved, src_dir_fd=below, dst_dir_fd=top)
                    directories.append(moved)
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _unlink_files(fd: int) -> list[str]:
    """Remove what is not a directory; the names of those that are, opened up for us."""
    with os.scandir(fd) as listing:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing]
    directories = [name for name, is_dir in entries if is_dir]
    for name in directories:
        os.chmod(name, 0o700, dir_fd=fd)
    for name, is_dir in entries:
        if not is_dir:
            os.unlink(name, dir_fd=fd)
    return directories


def _is_private_dir(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700 and found.st_uid == os.geteuid()
