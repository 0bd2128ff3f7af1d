"""The things that a pool places: boxes on shelves, and the tickets of those who wish for one. They decide nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from rollwright.wire import RuntimeFault

from .pacing import Breaker


class Phase(StrEnum):
    """Where a box is in its life."""

    MAKING = "making"
    IDLE = "idle"
    LEASED = "leased"
    RESETTING = "resetting"
    ENDING = "ending"


class CreationPaused(RuntimeFault):
    """Too many boxes in a row could not be made, so none is tried for a while."""


class PoolClosed(RuntimeFault):
    """The pool gives out no more boxes."""


@dataclass(eq=False, slots=True)
class Shelf:
    """All boxes of one resolved config, and those who wait for one."""

    key: str
    breaker: Breaker
    max_age_s: float
    used_once: bool = False
    """A reset would be the start of another box, so a box that is given back ends, and another is made."""
    owed: list[float] = field(default_factory=list)
    """When each box was given back that no other was made for yet."""
    idle: list[Box] = field(default_factory=list)
    """Clean boxes; the one that came last goes first, so that those nobody needs grow old."""
    waiting: dict[Ticket, None] = field(default_factory=dict)
    """Oldest first."""
    resetting: dict[Box, float] = field(default_factory=dict)
    """Since when each is being reset, in that order."""
    slow: int = 0
    """Of these, how many take so long that nobody counts on them."""
    counts: Counter[Phase] = field(default_factory=Counter)
    size: int = 0
    """All its boxes."""
    asked_at: float = float("-inf")

    @property
    def under_way(self) -> int:
        """Boxes that become idle soon, if all goes well."""
        return self.counts[Phase.MAKING] + len(self.resetting) - self.slow


@dataclass(eq=False, slots=True)
class Box:
    """One box, as far as placing it goes."""

    number: int
    shelf: Shelf
    phase: Phase = Phase.MAKING
    made_at: float = 0.0
    idle_since: float = 0.0
    uses: int = 0
    ticket: Ticket | None = None
    """Who holds it."""


@dataclass(eq=False, slots=True)
class Ticket:
    """One wish for a box: waiting, then holding `box` or refused with `error`, then gone."""

    number: int
    shelf: Shelf
    box: Box | None = None
    error: Exception | None = None
    failures: int = 0
    """Boxes that could not be made while this was the oldest wish of its shelf."""


@dataclass(slots=True)
class Work:
    """What is to be done now. Each box stands in one list, once per phase that it enters."""

    make: list[Box] = field(default_factory=list)
    reset: list[Box] = field(default_factory=list)
    end: list[Box] = field(default_factory=list)
    settled: list[Ticket] = field(default_factory=list)
    """Tickets that were given a box or refused."""
