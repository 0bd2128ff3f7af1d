"""Start a worker, end it, hear of its end: what every launcher promises. Calls return at once and never wait for a
worker; a worker announces itself at the broker's address."""

from __future__ import annotations

from typing import Protocol

import msgspec

GUEST = -1
"""The slot of a worker that nobody here started: it came by itself, and nobody here starts it again."""


class WorkerOrder(msgspec.Struct, frozen=True):
    """All that a worker needs to know. Small: it travels in an environment variable or an actor's constructor."""

    slot: int
    life: int
    address: str
    """`Address.encode()`."""
    host: str
    """Import path of what it serves, `module:function`."""
    options: str = "{}"
    """JSON for that function."""
    capacity: int = 64
    """Rollouts at once."""
    stall_limit_s: float = 0.0
    """A worker whose loop stands still for so long ends itself; 0 leaves that to whoever started it."""


class Exit(msgspec.Struct, frozen=True):
    slot: int
    life: int
    words: str
    """How it ended, and the end of what it said."""


class Launcher(Protocol):
    def room(self, wanted: int) -> int:
        """How many more workers can be started now, where `wanted` are wanted in all. None is started beyond it; a
        launcher that can make room begins to. SlotsSpent where there will never be room again."""
        ...

    def start(self, order: WorkerOrder) -> None: ...
    def kill(self, slot: int, life: int) -> None:
        """End it now, with its children. No error if it is gone."""
        ...

    def computing(self, slot: int, life: int) -> bool:
        """Whether a worker that says nothing is seen to use a CPU. A call that never lets go of the interpreter keeps
        the pulse from beating too: that worker is stalled, not dead. False where the launcher cannot tell."""
        ...

    def exits(self) -> list[Exit]:
        """Who ended since the last call, by itself or by `kill`."""
        ...

    def close(self) -> None:
        """End all of them."""
        ...
