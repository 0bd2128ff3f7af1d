"""The entries of the broker's books."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .protocol import Envelope, Submit

Frames = Sequence[Any]
"""What stands behind an envelope; carried, never looked at."""
Peer = bytes


@dataclass(frozen=True, slots=True)
class Letter:
    to: Peer
    envelope: Envelope
    frames: Frames = ()
    to_worker: bool = False


@dataclass(slots=True, eq=False)
class Request:
    client: Peer
    asked: Submit
    frames: Frames
    expires: float
    size: int = 0
    """Bytes of its frames."""
    ticket: int = -1
    holder: Peer | None = None
    crashes: int = 0
    """Workers that died while they held it."""
    arrived: set[int] = field(default_factory=set)
    withdrawn: set[int] = field(default_factory=set)
    """Rollouts that are to end as cancelled, wherever it runs."""
    over: bool = False

    @property
    def weight(self) -> int:
        return self.asked.rollouts - len(self.arrived)


@dataclass(slots=True, eq=False)
class Seat:
    """A worker that may be given work."""

    peer: Peer
    capacity: int
    place: str = ""
    """Clients of the same place can look into its shelf."""
    load: int = 0
    """Rollouts it holds."""
    held: dict[int, Request] = field(default_factory=dict)
    open: bool = True
    """Whether it may be given more."""
    noted_room: int = -1
    """The room that `Berths` believes it to have."""

    @property
    def room(self) -> int:
        return self.capacity - self.load


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much the books take."""

    window: int = 4096
    """Rollouts one client may have here at once."""
    queue: int = 65536
    """Rollouts that may wait, over all clients."""
    redispatches: int = 2
    """How often a request runs again after its worker died."""
    queue_bytes: int = 4 * 2**30
    """Frames of requests that may be here, over all clients. They stay until the request ends: it may run again."""
    reply_bytes: int = 2 * 2**30
    """Frames of results that one client may have unread; beyond it nothing more is begun for it."""
