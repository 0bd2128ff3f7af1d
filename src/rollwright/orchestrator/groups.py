"""The words of the books: a ticket to run a group, what became of each of its rollouts, and the sums.

No arrays here: what a rollout weighs is told in numbers, so that dispatch, its simulator and its checkpoint are the
same plain code. Samples lie where landing.py put them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from rollwright.wire import Trace

from .samples import DropReason, why_dropped


class Fate(StrEnum):
    TRAINED = "trained"
    DROPPED = "dropped"
    FAILED = "failed"


class Outcome(msgspec.Struct, frozen=True):
    """What became of one rollout. Every dispatched rollout gets exactly one."""

    fate: Fate
    reason: str = ""
    """A DropReason, the name of a filter, or layer and kind of the failure; empty for what is trained."""


class Ticket(msgspec.Struct, frozen=True):
    """The right to run one group."""

    number: int
    """Counts dispatched groups of the run from 0."""
    source: str
    """Name of the source its task is from."""
    task: int
    """Index into the tasks of the source."""
    first_attempt: int
    size: int
    """Rollouts."""
    version: int = 0
    """Newest policy version when it was dispatched."""


class Arrival(msgspec.Struct, frozen=True):
    """One rollout of a group that has come back, without its arrays."""

    outcome: Outcome
    """TRAINED here means that it can be trained."""
    reward: float = 0.0
    finished: bool = False
    """Whether the reward means something, so that the others may be measured by it."""
    agent: str = ""
    """Who played, where a task has several players; baselines may be kept apart by it."""
    tokens: int = 0
    trained_tokens: int = 0
    bytes: int = 0
    """Of its samples, where they lie."""
    oldest_version: int = 0
    """The oldest policy version that sampled any of it."""
    newest_version: int = 0
    flags: tuple[str, ...] = ()
    """The filters that caught it by looking at its tokens."""


class Landed(msgspec.Struct, frozen=True):
    """A group that has come back: whatever is said of its rollouts, and where their samples lie."""

    ticket: Ticket
    arrivals: tuple[Arrival, ...]
    path: str = ""
    """The file of its samples; empty if it has none, or if they are held in memory."""

    @property
    def bytes(self) -> int:
        return sum(arrival.bytes for arrival in self.arrivals)


def lost_group(ticket: Ticket, reason: str) -> Landed:
    """A group of which nothing came back."""
    return Landed(ticket, (Arrival(Outcome(Fate.FAILED, reason)),) * ticket.size)


def outcome_of(trace: Trace) -> Outcome:
    match why_dropped(trace):
        case None:
            return Outcome(Fate.TRAINED)
        case DropReason.FAILED:
            failure = trace.failure
            return Outcome(Fate.FAILED, f"{failure.layer}/{failure.kind}" if failure else "unnamed")
        case reason:
            return Outcome(Fate.DROPPED, reason)


def finished(trace: Trace) -> bool:
    return math.isfinite(trace.reward) and why_dropped(trace) not in (DropReason.FAILED, DropReason.CANCELLED)


class Accounts(msgspec.Struct):
    """The books: what was dispatched, and what became of it."""

    dispatched: int = 0
    trained: int = 0
    dropped: dict[str, int] = {}
    failed: dict[str, int] = {}

    def __repr__(self) -> str:
        dropped, failed = sum(self.dropped.values()), sum(self.failed.values())
        return (
            f"<Accounts {self.dispatched} dispatched: {self.trained} trained, {dropped} dropped, {failed} failed, "
            f"{self.in_flight} in flight>"
        )

    @property
    def in_flight(self) -> int:
        """Dispatched and not settled: running, or buffered for a batch."""
        return self.dispatched - self.trained - sum(self.dropped.values()) - sum(self.failed.values())

    def copy(self) -> Accounts:
        return Accounts(self.dispatched, self.trained, dict(self.dropped), dict(self.failed))

    def settle(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.fate is Fate.TRAINED:
                self.trained += 1
            else:
                book = self.dropped if outcome.fate is Fate.DROPPED else self.failed
                book[outcome.reason] = book.get(outcome.reason, 0) + 1
