"""Control groups: bounds of a whole box, in the hierarchy that this process may write, version 2 or 1.

Where none can be had, `make` gives an empty list and the caller falls back to limits of each process.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TOP = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_REMOVE_S = 5.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Zero means no bound."""

    memory_mb: int = 0
    cpus: float = 0.0
    pids: int = 0

    def wanted(self) -> dict[str, dict[str, str]]:
        """Controller by controller, the files of version 2 and what is written to them."""
        quota = int(self.cpus * _PERIOD_US)
        files = {
            "memory": {"memory.max": str(self.memory_mb << 20), "memory.swap.max": "0"} if self.memory_mb else {},
            "cpu": {"cpu.max": f"{quota} {_PERIOD_US}"} if self.cpus else {},
            "pids": {"pids.max": str(self.pids)} if self.pids else {},
        }
        return {controller: settings for controller, settings in files.items() if settings}

    def old(self, controller: str) -> dict[str, str]:
        """The same in the files of version 1."""
        if controller == "memory":
            return {"memory.limit_in_bytes": str(self.memory_mb << 20)}
        if controller == "cpu":
            return {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(int(self.cpus * _PERIOD_US))}
        return {"pids.max": str(self.pids)}


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


def make(name: str, bounds: Bounds) -> Groups:
    """Make groups called `name` with as many of `bounds` as this host lets us."""
    wanted = bounds.wanted()
    if not wanted:
        return Groups()
    return _make_new(name, wanted) or _make_old(name, bounds, list(wanted))


def places(name: str) -> list[str]:
    """Every path at which groups called `name` may have been made by this process."""
    return [str(parent / name) for parent in _parents().values()]


def remove(paths: Sequence[str]) -> None:
    """Remove groups; a group goes when its last process is gone, which may take a moment. OSError where it stays."""
    deadline = time.monotonic() + _REMOVE_S
    for path in paths:
        while os.path.isdir(path):
            try:
                os.rmdir(path)
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.001)


def members(path: str) -> list[int]:
    with suppress(OSError):
        return [int(pid) for pid in Path(path, "cgroup.procs").read_text().split()]
    return []


def _make_new(name: str, wanted: Mapping[str, Mapping[str, str]]) -> Groups | None:
    """One group in version 2, where its parent passes all wanted controllers on."""
    parent = _parents().get("")
    if parent is None:
        return None
    with suppress(OSError):
        if wanted.keys() - set((parent / "cgroup.subtree_control").read_text().split()):
            return None
        group = parent / name
        group.mkdir()
        for settings in wanted.values():
            _fill(group, settings)
        return Groups((str(group),), frozenset(wanted))
    return None


def _make_old(name: str, bounds: Bounds, wanted: Sequence[str]) -> Groups:
    made: dict[str, str] = {}
    for controller in wanted:
        parent = _parents().get(controller)
        if parent is None:
            continue
        with suppress(OSError):
            group = parent / name
            group.mkdir()
            _fill(group, bounds.old(controller))
            made[controller] = str(group)
    # A process that enters by `tasks` alone takes no lock of the whole machine: 0.1 ms in place of 6.
    return Groups(tuple(made.values()), frozenset(made), "tasks")


def _fill(group: Path, settings: Mapping[str, str]) -> None:
    try:
        for file, value in settings.items():
            if file == "memory.swap.max" and not (group / file).exists():
                continue
            (group / file).write_text(value)
    except OSError:
        group.rmdir()
        raise


@functools.cache
def _parents() -> Mapping[str, Path]:
    """By controller, where groups may be made: beside this process's own group in version 2, where a group that has
    processes passes nothing on, and below it in version 1. The empty name is version 2. Looked up once: processes are
    seldom moved, and a group that went away makes a box start without one."""
    found: dict[str, Path] = {}
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                own = _unified() / path.lstrip("/")
                found[""] = own if path == "/" else own.parent
            else:
                for controller in controllers.split(","):
                    found[controller] = _TOP / controller / path.lstrip("/")
    return {name: path for name, path in found.items() if os.access(path, os.W_OK)}


def _unified() -> Path:
    return _TOP / "unified" if (_TOP / "unified").is_dir() else _TOP
