"""Control groups: bounds of a whole box, in the hierarchy that this process may write, version 2 or 1.

Which groups a box gets is worked out once, as a recipe; the warden makes them together with the box, or `make` does.
Where none can be had, the recipe is empty and the caller falls back to limits of each process.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TOP = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_PERIOD_US = 100_000
_REMOVE_S = 5.0

Settings = tuple[tuple[str, str], ...]
"""Files of a group, and what is written to each."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Zero means no bound."""

    memory_mb: int = 0
    cpus: float = 0.0
    pids: int = 0

    def new(self) -> dict[str, Settings]:
        """By controller, the files of version 2."""
        files: dict[str, Settings] = {}
        if self.memory_mb:
            files["memory"] = (("memory.max", str(self.memory_mb << 20)),)
        if self.cpus:
            files["cpu"] = (("cpu.max", f"{int(self.cpus * _PERIOD_US)} {_PERIOD_US}"),)
        if self.pids:
            files["pids"] = (("pids.max", str(self.pids)),)
        return files

    def old(self) -> dict[str, Settings]:
        """The same in the files of version 1."""
        quota = str(int(self.cpus * _PERIOD_US))
        files = {
            "memory": (("memory.limit_in_bytes", str(self.memory_mb << 20)),),
            "cpu": (("cpu.cfs_period_us", str(_PERIOD_US)), ("cpu.cfs_quota_us", quota)),
            "pids": (("pids.max", str(self.pids)),),
        }
        return {controller: files[controller] for controller in self.new()}


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of one box: none, one (version 2), or one per controller (version 1)."""

    paths: tuple[str, ...] = ()
    controllers: frozenset[str] = frozenset()
    door: str = "cgroup.procs"

    @property
    def doors(self) -> list[str]:
        """Files to which a process writes itself to enter."""
        return [f"{path}/{self.door}" for path in self.paths]


@dataclass(frozen=True, slots=True)
class Part:
    """One group that is to be made."""

    parent: str
    controllers: tuple[str, ...]
    settings: Settings
    optional: Settings = ()
    """Files that not every kernel has. They are written first."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The groups of a box that is yet to be made."""

    parts: tuple[Part, ...] = ()
    door: str = "cgroup.procs"

    def paths(self, name: str) -> list[str]:
        return [f"{part.parent}/{name}" for part in self.parts]

    def groups(self, name: str, made: Sequence[bool]) -> Groups:
        """Those that were made, part by part."""
        parts = [part for part, there in zip(self.parts, made, strict=True) if there]
        controllers = frozenset(controller for part in parts for controller in part.controllers)
        return Groups(tuple(f"{part.parent}/{name}" for part in parts), controllers, self.door)


def recipe(bounds: Bounds) -> Recipe:
    """As many of `bounds` as this host may let us have. Worked out once for each."""
    return _recipe(bounds, tuple(_parents().items()))


def make(name: str, wanted: Recipe) -> Groups:
    """Make groups called `name`; those that cannot be made are left out."""
    return wanted.groups(name, [_make(f"{part.parent}/{name}", part) for part in wanted.parts])


def remove(paths: Sequence[str]) -> None:
    """Remove groups; a group goes when its last process is gone, which may take a moment. OSError where it stays."""
    deadline = time.monotonic() + _REMOVE_S
    for path in paths:
        while True:
            try:
                os.rmdir(path)
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.001)
            else:
                break


def end(path: str) -> None:
    """Kill all that is in a group: in one call of the kernel where it can (version 2), else one by one."""
    with suppress(OSError):
        fd = os.open(f"{path}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"1")
        finally:
            os.close(fd)
        return
    for pid in _members(path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def parents(top: Path = _TOP, own: Path = _OWN) -> Mapping[str, str]:
    """By controller, where groups may be made: beside this process's own group in version 2, where a group that has
    processes passes nothing on, and below it in version 1. The empty name is version 2."""
    found: dict[str, Path] = {}
    with suppress(OSError):
        for line in own.read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                group = _unified(top) / path.lstrip("/")
                found[""] = group if path == "/" else group.parent
            else:
                for controller in controllers.split(","):
                    found[controller] = top / controller / path.lstrip("/")
    return {name: str(path) for name, path in found.items() if os.access(path, os.W_OK)}


@functools.cache
def _parents() -> Mapping[str, str]:
    """Looked up once: processes are seldom moved, and a group that went away makes a box start without one."""
    return parents()


def _unified(top: Path) -> Path:
    return top / "unified" if (top / "unified").is_dir() else top


@functools.lru_cache(maxsize=64)
def _recipe(bounds: Bounds, found: tuple[tuple[str, str], ...]) -> Recipe:
    where, new = dict(found), bounds.new()
    if new and "" in where and _passes_on(where[""], new.keys()):
        settings = tuple(setting for part in new.values() for setting in part)
        optional = (("memory.swap.max", "0"),) if "memory" in new else ()
        return Recipe((Part(where[""], tuple(new), settings, optional),))
    parts = [Part(where[name], (name,), files) for name, files in bounds.old().items() if name in where]
    # A process that enters by `tasks` alone takes no lock of the whole machine: 0.1 ms in place of 6.
    return Recipe(tuple(parts), "tasks")


def _passes_on(parent: str, wanted: Iterable[str]) -> bool:
    """Whether groups below `parent` (version 2) have all wanted controllers, or have them now that we asked for it."""
    switch = Path(parent, "cgroup.subtree_control")
    with suppress(OSError):
        missing = set(wanted) - set(switch.read_text().split())
        if missing and missing <= set(Path(parent, "cgroup.controllers").read_text().split()):
            switch.write_text(" ".join(f"+{name}" for name in sorted(missing)))
            missing -= set(switch.read_text().split())
        return not missing
    return False


def _make(path: str, part: Part) -> bool:
    try:
        os.mkdir(path)
    except OSError:
        return False
    try:
        for file, value in part.optional:
            with suppress(FileNotFoundError):
                _write(f"{path}/{file}", value)
        for file, value in part.settings:
            _write(f"{path}/{file}", value)
    except OSError:
        os.rmdir(path)
        return False
    return True


def _write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _members(path: str) -> list[int]:
    with suppress(OSError):
        return [int(pid) for pid in Path(path, "cgroup.procs").read_text().split()]
    return []
