"""Finding and ending what a box left running, wherever it went.

A process belongs to a box when the environment it was started with carries the box's mark, when its working directory
lies inside the box, or when it descends from such a process. This finds double-forked daemons in sessions of their own.
Not found: a process that wiped its environment, left its session, lost its parent and works outside of the box; and on
systems without /proc, everything that left the process group. Code that would do so belongs in a stronger kind.

Processes that were there before the box began cannot be its own; they are recognised by the inode of their /proc entry
and skipped, so that the cost of a census follows what started since, not the size of the host. Boxes that end at the
same time share one census.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rollwright.wire import RuntimeFault

from .threads import in_thread

MARK = "ROLLWRIGHT_BOX"
_PROC = Path("/proc")
_ENVIRON_LIMIT = 1 << 20
_DOUBTS = 3
"""How often a look that found nothing and is not sure is repeated. On a busy host some stranger always ends meanwhile;
a process of the box would have to slip through each time."""
_PAUSE_S = 0.002
_SETTLED_S = 0.005
"""Who told nothing for so long is not just becoming another program."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A process, with the mark it was started with and where it works."""

    pid: int
    mark: str
    cwd: str
    blank: bool = False
    """It told nothing: it has ended, is about to become another program, or has no environment at all."""


@dataclass(frozen=True, slots=True)
class Look:
    """Who was there. Not `sure` where one was listed and then told nothing: what it started meanwhile is not listed."""

    sightings: list[Sighting]
    sure: bool


@dataclass(frozen=True, slots=True)
class Quarry:
    """Whom to look for. `mark` matches as a prefix, `root` is a directory (empty: do not look at directories)."""

    mark: str
    root: str
    since: float
    """`time.monotonic()` of a moment before the first process of this quarry."""

    def owns(self, seen: Sighting) -> bool:
        return seen.mark.startswith(self.mark) or self._holds(seen.cwd)

    def _holds(self, cwd: str) -> bool:
        inside = (self.root + "/", self.root + " (deleted)")
        return bool(self.root) and (cwd == self.root or cwd.startswith(inside))


async def sweep(quarry: Quarry, *, within_s: float) -> int:
    """End all of `quarry` and see that it is gone; the number ended. RuntimeFault where some survive `within_s`."""
    deadline = time.monotonic() + within_s
    ended, doubts = 0, 0
    try:
        while True:
            look = await _census().take(quarry.since)
            owned = [seen.pid for seen in look.sightings if quarry.owns(seen)]
            if owned and time.monotonic() > deadline:
                raise RuntimeFault(f"{len(owned)} processes are still there after {within_s:g} s of killing: {owned}")
            if owned:
                ended, doubts = ended + await in_thread(_strike, quarry, owned, deadline), 0
            elif look.sure or doubts == _DOUBTS:
                return ended
            else:
                doubts += 1
                await asyncio.sleep(_PAUSE_S)
    except OSError as error:
        raise RuntimeFault(f"could not see whether processes are left: {error}") from error


def note_settler(pid: int) -> None:
    """A process that was there before comes to a box now: it counts as new from the next look on."""
    _settlers.append(pid)


async def find(quarry: Quarry) -> list[Sighting]:
    """All of `quarry` that is there, and what descends from it. RuntimeFault where that cannot be seen."""
    try:
        look = await _census().take(quarry.since)
        owned = [seen for seen in look.sightings if quarry.owns(seen)]
        return owned and await in_thread(_with_descendants, owned)
    except OSError as error:
        raise RuntimeFault(f"could not see which processes are there: {error}") from error


def grasp_tree(pid: int) -> list[int]:
    """Handles of the descendants of a live `pid`, wherever their sessions are; the caller strikes or closes them."""
    handles = []
    for descendant in _descendants([pid]):
        with suppress(OSError):
            handles.append(os.pidfd_open(descendant))
    return handles


def strike_handles(handles: list[int]) -> None:
    """Kill what the handles hold, and let go of them."""
    for handle in handles:
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)


def _strike(quarry: Quarry, owned: list[int], deadline: float) -> int:
    """Kill `owned` with their descendants, and wait for their end."""
    below = set(_descendants(owned)) - set(owned)
    handles = [handle for pid in owned if (handle := _kill(pid, quarry)) is not None]
    handles += [handle for pid in below if (handle := _kill(pid, None)) is not None]
    try:
        _await_ends(handles, deadline)
    finally:
        for handle in handles:
            os.close(handle)
    return len(handles)


def _kill(pid: int, quarry: Quarry | None) -> int | None:
    """SIGKILL through a handle that is opened before the check, so that a reused pid is never hit."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if quarry is not None and not quarry.owns(_sight(pid)):
        os.close(handle)
        return None
    with suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    return handle


def _await_ends(handles: list[int], deadline: float) -> None:
    poller = select.poll()
    for handle in handles:
        poller.register(handle, select.POLLIN)
    waiting = len(handles)
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        for handle, _ in poller.poll(left_s * 1000):
            poller.unregister(handle)
            waiting -= 1


def _descendants(pids: Iterable[int]) -> Iterator[int]:
    queue = list(pids)
    while queue:
        below = _children(queue.pop())
        queue += below
        yield from below


def _with_descendants(owned: list[Sighting]) -> list[Sighting]:
    known = {seen.pid for seen in owned}
    return owned + [_sight(pid) for pid in dict.fromkeys(_descendants(known)) if pid not in known]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
    return found


def _sight(pid: int) -> Sighting:
    """What /proc tells of `pid`; nothing where it ended or belongs to somebody else."""
    try:
        fd = os.open(f"/proc/{pid}/environ", os.O_RDONLY)
        try:
            environ = b"\0" + _read_all(fd)
        finally:
            os.close(fd)
        cwd = _cwd(pid)
    except PermissionError:
        return Sighting(pid, "", "")
    except (ProcessLookupError, FileNotFoundError):
        return Sighting(pid, "", "", blank=True)
    _, _, tail = environ.partition(f"\0{MARK}=".encode())
    return Sighting(pid, tail.partition(b"\0")[0].decode("ascii", "replace"), cwd, blank=environ == b"\0")


def _cwd(pid: int) -> str:
    """Where a process works; empty where that path is too long to be told. Some program of the host in a very deep
    directory must not keep every box from ending."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return ""


def _read_all(fd: int) -> bytes:
    parts = bytearray()
    while (part := os.read(fd, 65536)) and len(parts) < _ENVIRON_LIMIT:
        parts += part
    return bytes(parts)


class _Census:
    """Who is there, asked once for all who ask at the same time."""

    def __init__(self) -> None:
        self._running: asyncio.Task[Look] | None = None
        self._next: asyncio.Task[Look] | None = None
        self._since = 0.0

    async def take(self, since: float) -> Look:
        """At least all processes that began after `since`, as seen by a look that begins after this call."""
        if self._next is None:
            self._since = since
            self._next = asyncio.create_task(self._look(), name="census")
        self._since = min(self._since, since)
        return await asyncio.shield(self._next)

    async def _look(self) -> Look:
        if self._running is not None:
            await asyncio.wait({self._running})
        self._running, self._next = self._next, None
        return await in_thread(_look, self._since)


_censuses: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Census] = weakref.WeakKeyDictionary()
_seen: dict[int, tuple[int, float]] = {}
"""Of every process there is: the inode of its /proc entry, and when it was first seen."""
_blank: dict[tuple[int, int], float] = {}
"""Of every process that told nothing, by id and inode: when that was seen first."""
_seen_lock = threading.Lock()
_settlers: deque[int] = deque(maxlen=4096)
"""Processes that came to a box after they may have been seen elsewhere. Of more than so many the first have ended."""


def _census() -> _Census:
    return _censuses.setdefault(asyncio.get_running_loop(), _Census())


def _look(since: float) -> Look:
    """Every process but this one that was not there before `since`; the youngest first, since they change most."""
    now, this = time.monotonic(), os.getpid()
    with _seen_lock:
        before = dict(_seen)
        while _settlers:
            before.pop(_settlers.popleft(), None)
        _seen.clear()
        for pid, inode in _entries():
            known = before.get(pid)
            _seen[pid] = known if known is not None and known[0] == inode else (inode, now)
        newer = {pid: inode for pid, (inode, first) in _seen.items() if first >= since and pid != this}
    sightings = [_sight(pid) for pid in sorted(newer, reverse=True)]
    return Look(sightings, _settled({(seen.pid, newer[seen.pid]) for seen in sightings if seen.blank}, now))


def _settled(blank: set[tuple[int, int]], now: float) -> bool:
    """Whether all that told nothing have done so for a while."""
    with _seen_lock:
        for one in [one for one in _blank if _seen.get(one[0], (0, 0.0))[0] != one[1]]:
            del _blank[one]
        since = [_blank.setdefault(one, now) for one in blank]
    return not since or now - max(since) >= _SETTLED_S


def _entries() -> Iterator[tuple[int, int]]:
    if not _PROC.is_dir():
        return
    with os.scandir(_PROC) as entries:
        for entry in entries:
            if entry.name.isdigit():
                yield int(entry.name), entry.inode()
