"""The seat that a box on this machine offers to a script that is already loaded. Filled in by the kind of the box."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from rollwright.runtimes.contract import ExecResult
from rollwright.runtimes.local import Command, Quarry

JOINED = ("user", "mnt", "pid", "net", "ipc", "uts")


@dataclass(frozen=True, slots=True)
class Seat:
    """All that a program of the box starts with. A forked child takes it before the script's first line."""

    env: Mapping[str, str]
    """The whole environment, with the box's mark."""
    cwd: str
    """As seen from inside the box."""
    mark: str
    """What a census finds the child by."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Resource limits by the name that follows RLIMIT_, in the units of setrlimit."""
    writable: Sequence[str] = ()
    """Where landlock lets the child write; empty does not confine."""
    ruleset: int = -1
    """A descriptor of the same as rules of landlock, where the box keeps one: it saves the child the making."""
    drop_capabilities: Sequence[int] = ()
    """Numbers of the capabilities that programs of the box do not have."""
    join_pid: int = 0
    """A process whose namespaces the child enters; 0 stays in those of this host."""
    namespaces: Sequence[str] = JOINED
    """Which of them."""
    cgroups: Sequence[str] = ()
    """`cgroup.procs` files, or `tasks` of version 1, that the child enrols itself in."""
    uid: int = -1
    gid: int = -1
    seccomp: str = ""
    """The box's filter of system calls as BPF code in hex; empty filters nothing."""


Starter = Callable[[Seat, Quarry, bool, int], Command]
"""Seat, whom to look for at the end, whether stdin is fed, bytes kept of each output stream."""


@runtime_checkable
class Seats(Protocol):
    """A box on this machine that a script loaded elsewhere can take a seat in."""

    def seat(self, env: Mapping[str, str] | None) -> Seat:
        """The seat of the next program."""
        ...

    async def run_seated(
        self, start: Starter, *, env: Mapping[str, str] | None, stdin: bytes, timeout_s: float
    ) -> ExecResult:
        """As `run`, for a program that `start` brings to life."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Loadable:
    """A script and the interpreter that was provisioned for it."""

    python: Path
    path: str
    digest: str

    # Looked up several times in each call: a path would be taken apart every time.
    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        mine = (self.digest, self.path, str(self.python))
        return isinstance(other, Loadable) and mine == (other.digest, other.path, str(other.python))

    def __hash__(self) -> int:
        return hash(self.digest)
