"""A finished group: the samples it gives, and what became of each of its rollouts.

`compile_group` does all work of the size of tokens, when the group arrives and in a thread; what is left for the end of
the step is of the size of samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec
import numpy as np

from rollwright.wire import Trace

from .advantages import group_centred
from .samples import DropReason, Sample, samples_of, why_dropped


class Fate(StrEnum):
    TRAINED = "trained"
    DROPPED = "dropped"
    FAILED = "failed"


class Outcome(msgspec.Struct, frozen=True):
    """What became of one rollout. Every dispatched rollout gets exactly one."""

    fate: Fate
    reason: str = ""
    """A DropReason, or layer and kind of the failure; empty for what is trained."""


class Ticket(msgspec.Struct, frozen=True):
    """The right to run one group."""

    number: int
    """Counts dispatched groups from 0."""
    task: int
    """Index into the tasks."""
    first_attempt: int


class Group(msgspec.Struct, frozen=True, eq=False):
    ticket: Ticket
    outcomes: tuple[Outcome, ...]
    samples: tuple[Sample, ...] = ()
    rewards: tuple[float, ...] = ()
    """Of the members that finished, whether their tokens can be trained or not."""


def compile_group(ticket: Ticket, traces: Sequence[Trace], *, divide_by_std: bool = False) -> Group:
    outcomes = tuple(map(outcome_of, traces))
    finished_G = np.fromiter(map(_finished, traces), np.bool_, len(traces))  # noqa: N806
    rewards_G = np.fromiter((trace.reward for trace in traces), np.float64, len(traces))  # noqa: N806
    advantages = group_centred(rewards_G, finished_G, divide_by_std=divide_by_std).tolist()
    samples = tuple(
        msgspec.structs.replace(sample, advantage=advantage)
        for trace, advantage in zip(traces, advantages, strict=True)
        for sample in samples_of(trace)
    )
    return Group(ticket, outcomes, samples, tuple(rewards_G[finished_G].tolist()))


def lost_group(ticket: Ticket, size: int, reason: str) -> Group:
    """A group of which nothing came back."""
    return Group(ticket, (Outcome(Fate.FAILED, reason),) * size)


def outcome_of(trace: Trace) -> Outcome:
    match why_dropped(trace):
        case None:
            return Outcome(Fate.TRAINED)
        case DropReason.FAILED:
            failure = trace.failure
            return Outcome(Fate.FAILED, f"{failure.layer}/{failure.kind}" if failure else "unnamed")
        case reason:
            return Outcome(Fate.DROPPED, reason)


def _finished(trace: Trace) -> bool:
    """Whether the reward means something, so that the others may be measured by it."""
    return math.isfinite(trace.reward) and why_dropped(trace) not in (DropReason.FAILED, DropReason.CANCELLED)


class Accounts:
    """The books: what was dispatched, and what became of it."""

    def __init__(self) -> None:
        self.dispatched = 0
        self.trained = 0
        self.dropped: dict[str, int] = {}
        self.failed: dict[str, int] = {}

    def __repr__(self) -> str:
        dropped, failed = sum(self.dropped.values()), sum(self.failed.values())
        return (
            f"<Accounts {self.dispatched} dispatched: {self.trained} trained, {dropped} dropped, {failed} failed, "
            f"{self.in_flight} in flight>"
        )

    @property
    def in_flight(self) -> int:
        return self.dispatched - self.trained - sum(self.dropped.values()) - sum(self.failed.values())

    def settle(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.fate is Fate.TRAINED:
                self.trained += 1
            else:
                book = self.dropped if outcome.fate is Fate.DROPPED else self.failed
                book[outcome.reason] = book.get(outcome.reason, 0) + 1
