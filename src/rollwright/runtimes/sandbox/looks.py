"""What a box looks like from outside: its processes, ports, mounts and files, read through /proc of its first process.

Nothing is started for a look, so that it costs a fraction of a millisecond and cannot be lied to by what runs inside.
"""

from __future__ import annotations

import functools
import os
import resource
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress

from rollwright.runtimes.state import BoxState

from .ipc import Ipc
from .layout import PLACES, WORKSPACE
from .ports import ports

_FILES_SEEN = 10_000
_LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
_KINDS = tuple(_LIMITS.values())


def look(
    pid: int, environment: Mapping[str, str], ipc: Ipc, *, diag: int = -1, own_network: bool = True, upper: int = -1
) -> BoxState:
    """The state of the box whose first process is `pid`; `upper` is where changes of an overlaid workspace lie, `diag`
    asks its network. In a network of its own every socket is the box's; in the host's, those that its programs hold.
    OSError where the box is gone."""
    # First: where nobody is left, nothing that is looked at afterwards changes any more.
    processes = tuple(_processes(f"/proc/{pid}/root/proc"))
    held = None if own_network else set(_held_sockets(f"/proc/{pid}/root/proc"))
    tops = {path: f"/proc/{pid}/root{path}" for path in PLACES}
    if upper >= 0:
        tops[WORKSPACE] = f"/proc/self/fd/{upper}"
    return BoxState(
        files=dict(_files(tops)),
        processes=processes,
        ports=tuple(sorted(ports(diag, f"/proc/{pid}/net", held))) if held != set() else (),
        environment=dict(environment),
        mounts=tuple(sorted(_mounts(pid))),
        kernel=(_settings(pid), *ipc.objects()),
    )


def _settings(pid: int) -> str:
    """What programs of the box can change of its first process, which outlives them."""
    limits = tuple([resource.prlimit(pid, kind) for kind in _KINDS])
    nice, policy = os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid)
    return _settings_told(nice, policy, frozenset(os.sched_getaffinity(pid)), limits)


@functools.lru_cache(maxsize=8)
def _settings_told(nice: int, policy: int, processors: frozenset[int], limits: tuple[tuple[int, int], ...]) -> str:
    """Boxes hardly ever differ in these, so that the words are made once."""
    bounds = " ".join(f"{name}={soft}:{hard}" for name, (soft, hard) in zip(_LIMITS, limits, strict=True))
    return f"first process: nice={nice} policy={policy} processors={sorted(processors)} {bounds}"


def _processes(proc: str) -> Iterator[str]:
    for name in os.listdir(proc):
        if name.isdigit() and name != "1":
            with suppress(OSError):
                head, _, tail = _read(f"{proc}/{name}/stat").rpartition(b")")
                if tail.split()[0] not in (b"Z", b"X"):
                    yield f"{name} {head.partition(b'(')[2].decode('utf-8', 'replace')}"


def _held_sockets(proc: str) -> Iterator[int]:
    """Inodes of the sockets that the processes of the box have open."""
    for name in os.listdir(proc):
        if name.isdigit() and name != "1":
            with suppress(OSError):
                for fd in os.listdir(f"{proc}/{name}/fd"):
                    with suppress(OSError):
                        link = os.readlink(f"{proc}/{name}/fd/{fd}")
                        if link.startswith("socket:["):
                            yield int(link[8:-1])


def _mounts(pid: int) -> Iterator[str]:
    """What is mounted where and how, without the numbers that every mount gets anew."""
    for line in _read(f"/proc/{pid}/mountinfo").decode("utf-8", "surrogateescape").splitlines():
        _, _, _, shown, place, how, rest = line.split(" ", 6)
        yield f"{place} {shown} {how} {rest.partition('- ')[2]}"


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def _files(tops: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Every path below the places that may be written. A tree of which a part was seen is not empty either, so the
    look ends after some thousands: a reset asks whether anything is there."""
    queue = [(path, where, os.stat(where)) for path, where in tops.items()]
    count = 0
    while queue and count < _FILES_SEEN:
        top, where, found = queue.pop()
        yield top, _told(where, found)
        try:
            names = os.listdir(where)
        except OSError as error:
            yield f"{top}/", f"unreadable: {error.strerror}"
            continue
        count += len(names)
        for name in names[:_FILES_SEEN]:
            with suppress(FileNotFoundError):
                inner = os.lstat(f"{where}/{name}")
                if not stat.S_ISDIR(inner.st_mode):
                    yield f"{top}/{name}", _told(f"{where}/{name}", inner)
                # What is shown of the host lies on another device, and is not the box's own.
                elif inner.st_dev == found.st_dev:
                    queue.append((f"{top}/{name}", f"{where}/{name}", inner))
    if queue:
        yield "...", f"over {_FILES_SEEN} files"


def _told(path: str, found: os.stat_result) -> str:
    kind = stat.filemode(found.st_mode)
    if stat.S_ISDIR(found.st_mode):
        return f"{kind} {found.st_uid}:{found.st_gid}"
    link = f" -> {os.readlink(path)}" if stat.S_ISLNK(found.st_mode) else ""
    return f"{kind} {found.st_uid}:{found.st_gid} {found.st_size} {found.st_mtime_ns}{link}"
