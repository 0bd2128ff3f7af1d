"""What was provisioned, written down before it is created, so that a later start can free what a kill left behind.

One small file per box lies in a directory, named by the box. It tells who made it (host, process id and start time,
so that a reused id is not mistaken for the owner), of which kind it is, and the clues by which that kind finds what is
left. The file goes when the box is freed. A file whose owner is gone is what a sweep looks for; freeing is the kind's
own work.

Process ids mean something only to those who count them alike, so boxes of other hosts, and of containers that share
this directory, are left alone.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from rollwright.wire import RuntimeFault

from .local.threads import in_thread
from .provision import cache_dir

Clues = dict[str, str]
Sweeper = Callable[[Clues], Awaitable[None]]
"""Frees what the clues lead to, or finds that nothing is left. Idempotent; raises where it could not."""

_AT_ONCE = 8
_FREE_S = 60.0
_STATE, _THREADS, _STARTED = 0, 17, 19
"""Places in /proc/PID/stat, counted from after the name."""


class Entry(msgspec.Struct, frozen=True):
    """One box, as its journal file tells it."""

    kind: str
    name: str
    host: str
    """Where the owner's process id is counted: the host, and the space of process ids in it."""
    pid: int
    started: str
    """When the owner started, as the system tells it."""
    clues: Clues


class Swept(msgspec.Struct, frozen=True):
    """What a sweep did: names of boxes that were freed, and of those that could not be, with the reason."""

    freed: tuple[str, ...] = ()
    failed: Mapping[str, str] = {}


class Journal:
    """The boxes of all processes of this user on this host. Plain methods block on the disk: they are for threads."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or cache_dir() / "boxes"

    def __repr__(self) -> str:
        return f"<Journal {self.directory}>"

    def open(self, kind: str, name: str, clues: Mapping[str, str]) -> None:
        """Note a box before it is created. Called again, it replaces the clues: creating may teach new ones.

        RuntimeFault where that cannot be done: what is not written down must not be made."""
        try:
            self._write(kind, name, clues)
        except OSError as error:
            step = "set ROLLWRIGHT_CACHE_DIR to a directory you can write"
            raise RuntimeFault(f"could not write down box {name} in {self.directory}: {error}; {step}") from error

    def _write(self, kind: str, name: str, clues: Mapping[str, str]) -> None:
        pid = os.getpid()
        here, started = _self(pid)
        entry = msgspec.json.encode(Entry(kind, name, here, pid, started, dict(clues)))
        path = f"{self.directory}/{name}.json"
        fresh = f"{self.directory}/.{name}.json.{pid}-{started}"
        try:
            _write_file(fresh, entry)
        except FileNotFoundError:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write_file(fresh, entry)
        os.replace(fresh, path)

    def close(self, name: str) -> None:
        """Forget a box that was freed. Idempotent. Where that cannot be done, a sweep will find nothing to free."""
        with suppress(OSError):
            os.unlink(f"{self.directory}/{name}.json")

    def entries(self) -> Iterator[Entry]:
        """What is written down. A file that makes no sense is nobody's box and is passed over."""
        if not self.directory.is_dir():
            return
        for path in sorted(self.directory.glob("*.json")):
            with suppress(OSError, msgspec.DecodeError):
                yield msgspec.json.decode(path.read_bytes(), type=Entry)

    def orphans(self) -> list[Entry]:
        """Boxes of this host whose owner is gone."""
        here = _here()
        return [entry for entry in self.entries() if entry.host == here and started_at(entry.pid) != entry.started]

    def has_orphans(self) -> bool:
        return bool(self.orphans() or self._torn())

    async def sweep(self, sweepers: Mapping[str, Sweeper]) -> Swept:
        """Free every orphan of a kind that is known here, a few at a time."""
        freed: list[str] = []
        failed: dict[str, str] = {}
        seats = asyncio.Semaphore(_AT_ONCE)

        async def free(entry: Entry) -> None:
            sweeper = sweepers.get(entry.kind)
            if sweeper is None:
                failed[entry.name] = f"nothing here frees boxes of kind {entry.kind!r}"
                return
            try:
                async with seats, asyncio.timeout(_FREE_S):
                    await sweeper(entry.clues)
            except Exception as error:  # A box that cannot be freed must not keep the others from being freed.
                failed[entry.name] = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            else:
                await in_thread(self.close, entry.name)
                freed.append(entry.name)

        async with asyncio.TaskGroup() as group:
            for entry in await in_thread(self.orphans):
                group.create_task(free(entry), name=f"free {entry.name}")
        await in_thread(self._remove_torn)
        return Swept(tuple(sorted(freed)), failed)

    def _remove_torn(self) -> None:
        for path in self._torn():
            path.unlink(missing_ok=True)

    def _torn(self) -> list[Path]:
        """Files that somebody began to write and was killed over. Nothing had been made for them yet."""
        found = []
        for path in self.directory.glob(".*.json.*"):
            pid, _, started = path.name.rpartition(".")[2].partition("-")
            if pid.isdigit() and started_at(int(pid)) != started:
                found.append(path)
        return found


def _write_file(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        if os.write(fd, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)


@functools.lru_cache(maxsize=1)
def _self(pid: int) -> tuple[str, str]:
    """Where this process is and when it started; a fork has another id, and asks again."""
    return _here(), started_at(pid)


def _here() -> str:
    """This host, and which space of process ids of it: containers may share a name and a directory, and not the ids."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{socket.gethostname()} {space}"


def started_at(pid: int) -> str:
    """When a process started, in the kernel's own ticks; empty if there is none, or only its unreaped remains. Where
    there is no /proc, a process that exists started at an unknown time, and counts as the one that was meant."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        if Path("/proc/self/stat").exists():
            return ""
    else:
        ended = fields[_STATE] in "ZX" and int(fields[_THREADS]) <= 1
        return "" if ended else fields[_STARTED]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "unknown"
