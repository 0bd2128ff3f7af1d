"""What a trainer eats: one branch of a trace as columns, and the reason why a trace gives none.

A sample is exactly what the engine received and sampled along one chain of calls. Not covered: how branches become
samples (drafts.py), rewards of neighbours (advantages.py), files (landing.py, batches.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from rollwright.wire import CallRecord, Stop, TokenSegment, Trace, WireError
from rollwright.wire.arrays import Experts, Ids, Ints, Logprobs, Mask, check_column


class DropReason(StrEnum):
    """Why a rollout trains nothing."""

    FAILED = "failed"
    CANCELLED = "cancelled"
    INEXACT = "inexact"
    """The trace itself says that its tokens are not proven, or a call was lost."""
    REWARD_NOT_FINITE = "reward_not_finite"
    NO_TOKENS = "no_tokens"
    """An answer came without token ids: the engine, or a router before it, does not send them."""
    BROKEN_TAPE = "broken_tape"
    """A segment extends a call that has no tape, or one that came later."""
    BROKEN_ROUTING = "broken_routing"
    """Routed experts reach past the tape, or change their shape along it."""
    NOTHING_SAMPLED = "nothing_sampled"


class ErrorPolicy(StrEnum):
    """What becomes of a rollout that failed, or whose reward is not a number, after the model has spoken.

    Either way it sets no baseline and trains no token. A call that failed inside a rollout that went on is no part of
    any tape, so it takes nothing from the rest, under either policy.
    """

    DROP = "drop"
    """It gives no samples; another rollout takes its place."""
    MASK = "mask"
    """Its samples come along with a mask that is false everywhere, so that it keeps its place in the batch and the
    number of rollouts that a loss is divided by does not depend on how many failed. What has no sampled token to show,
    and what was cancelled, is dropped all the same."""


class Sample(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """One branch. Columns have one entry per token of the tape; the rest is constant for the sample."""

    task_id: str
    attempt: int
    branch: int
    """Counts the leaves of the trace, oldest first."""
    reward: float
    advantage: float = 0.0
    group: int = -1
    """Number of the ticket that its group ran under; -1 if it is of none."""
    source: str = ""
    """Name of the source that its task is from."""
    rank: int = -1
    """The trainer's rank that gets it; -1 where the batch is not packed."""
    micro: int = -1
    """Its micro-batch on that rank, from 0; -1 where the batch is not packed."""
    ids: Ids
    mask: Mask
    """True where this sample trains the token: it was sampled, and no older branch trains it."""
    logprobs: Logprobs
    """As the engine gave them, for every sampled token, trained here or not; 0 elsewhere."""
    span_lengths: Ints
    """Tokens that each call along the branch added; they add up to the tape."""
    span_versions: Ints
    """The policy version that spoke in each span."""
    routed: Experts | None = None
    """[tokens, layers, top_k]."""
    routed_hole: Mask | None = None
    """True where nobody delivered the row, which is zero there."""

    def __post_init__(self) -> None:
        check_column(self.ids, "i4", "ids")
        check_column(self.mask, "b1", "the mask")
        check_column(self.logprobs, "f4", "logprobs")
        check_column(self.span_lengths, "i8", "span lengths")
        check_column(self.span_versions, "i8", "span versions")
        if not len(self.ids) == len(self.mask) == len(self.logprobs) == int(self.span_lengths.sum()):
            raise WireError(f"the columns of a sample of {len(self.ids)} ids differ in length")
        if len(self.span_lengths) != len(self.span_versions):
            raise WireError("each span of a sample needs one policy version")
        self._check_routing()

    def _check_routing(self) -> None:
        if self.routed is None or self.routed_hole is None:
            if self.routed is not self.routed_hole:
                raise WireError("routed experts come with the mask of their holes")
            return
        check_column(self.routed_hole, "b1", "the holes")
        if self.routed.ndim != 3 or not len(self.routed) == len(self.routed_hole) == len(self.ids):
            raise WireError(f"routed experts of {len(self.routed)} rows do not fit {len(self.ids)} ids")


def maskable(trace: Trace) -> bool:
    """Whether ErrorPolicy.MASK keeps the place of this trace."""
    return why_dropped(trace) in (DropReason.FAILED, DropReason.REWARD_NOT_FINITE) and not _why_tapes_unfit(trace.calls)


def why_dropped(trace: Trace) -> DropReason | None:
    """None exactly where the trace gives samples that train a token."""
    if trace.failure is not None or trace.stop is Stop.FAILED:
        return DropReason.FAILED
    if trace.stop is Stop.CANCELLED:
        return DropReason.CANCELLED
    if not math.isfinite(trace.reward):
        return DropReason.REWARD_NOT_FINITE
    if (unfit := _why_tapes_unfit(trace.calls)) is not None:
        return unfit
    return None if trace.trainable else DropReason.INEXACT


def tape_of(call: CallRecord) -> TokenSegment | None:
    """What the call added. A call that failed was not answered, and nothing may rest on it."""
    return call.tokens if call.failure is None else None


def _why_tapes_unfit(calls: Sequence[CallRecord]) -> DropReason | None:
    lengths: dict[int, int] = {-1: 0}
    shapes: dict[int, tuple[int, ...]] = {-1: ()}
    sampled = False
    for index, call in enumerate(calls):
        if (tape := tape_of(call)) is None:
            if call.failure is None:
                return DropReason.NO_TOKENS if call.reply >= 0 else DropReason.INEXACT
            continue
        # `lengths` holds earlier calls with a tape and nothing else, so this refuses loops as well.
        if tape.base not in lengths:
            return DropReason.BROKEN_TAPE
        lengths[index] = lengths[tape.base] + len(tape.ids)
        shapes[index] = shapes[tape.base]
        if (routing := tape.routing) is not None:
            shapes[index] = routing.rows.shape[1:]
            grown = shapes[tape.base] not in ((), shapes[index])
            if grown or routing.start + len(routing.rows) > lengths[index]:
                return DropReason.BROKEN_ROUTING
        sampled = sampled or bool(tape.sampled.any())
    return None if sampled else DropReason.NOTHING_SAMPLED
