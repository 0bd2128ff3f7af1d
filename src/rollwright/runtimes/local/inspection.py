"""What a box on this machine looks like from outside: files below a directory, processes, and where those listen.

Everything here blocks on the disk or on /proc and is called in a thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from .census import Sighting

MOST_FILES = 2000
"""A tree with more entries is told by its first ones and a word; no fresh box has as many, so it still differs."""

_TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}
_LISTENS = {"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"}
"""Tables of the kernel, with the state that a waiting socket has in each."""


def files_below(root: str, most: int = MOST_FILES) -> dict[str, str]:
    """Every path below `root`, itself included, with a word that changes when the path does."""
    found = {".": _word(root, os.lstat(root))}
    waiting = [root]
    while waiting:
        directory = waiting.pop()
        try:
            with os.scandir(directory) as listing:
                for entry in listing:
                    if len(found) > most:
                        return found | {"...": f"over {most} entries"}
                    status = entry.stat(follow_symlinks=False)
                    found[os.path.relpath(entry.path, root)] = _word(entry.path, status)
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(entry.path)
        except OSError as error:
            # What cannot be looked at is not as it was.
            found[os.path.relpath(directory, root)] = f"unreadable: {error.strerror}"
    return found


def processes_told(seen: Iterable[Sighting]) -> tuple[str, ...]:
    return tuple(f"{one.pid} {_name(one.pid)}" for one in seen)


def ports_of(seen: Iterable[Sighting]) -> tuple[str, ...]:
    """Where these processes listen, such as `tcp 0100007F:1F90` in the kernel's own spelling."""
    found: set[str] = set()
    for one in seen:
        own = set(_sockets(one.pid))
        if own:
            found |= {told for inode, told in _listening(one.pid) if inode in own}
    return tuple(sorted(found))


def _word(path: str, status: os.stat_result) -> str:
    mode = status.st_mode
    kind = _TYPES.get(stat.S_IFMT(mode), "unknown")
    word = f"{kind} {stat.S_IMODE(mode):o} {status.st_uid}:{status.st_gid}"
    if kind == "directory":
        # Its size and times follow from what is in it, and a reset makes it anew.
        return word
    target = f" -> {_target(path)}" if kind == "link" else ""
    return f"{word} {status.st_size} {status.st_mtime_ns}{target}"


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return "?"


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "(ended)"


def _sockets(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
                if target.startswith("socket:["):
                    yield target[8:-1]


def _listening(pid: int) -> Iterator[tuple[str, str]]:
    """Inode and address of every waiting socket in the network that `pid` sees."""
    for table, state in _LISTENS.items():
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == state:
                    yield words[9], f"{table} {words[1]}"
