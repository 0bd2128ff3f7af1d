"""Branches of a trace as columns. A sample is exactly what the engine received and sampled along one chain of calls.

Covered: the tapes of all branches, which of them trains a token that several share, routed experts at absolute offsets,
and the reason why a trace gives nothing. Not covered: rewards of neighbours (advantages.py), files (batches.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec
import numpy as np

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


def why_dropped(trace: Trace) -> DropReason | None:
    """None exactly where `samples_of` gives samples."""
    if trace.failure is not None or trace.stop is Stop.FAILED:
        return DropReason.FAILED
    if trace.stop is Stop.CANCELLED:
        return DropReason.CANCELLED
    if not math.isfinite(trace.reward):
        return DropReason.REWARD_NOT_FINITE
    if (unfit := _why_tapes_unfit(trace.calls)) is not None:
        return unfit
    return None if trace.trainable else DropReason.INEXACT


def samples_of(trace: Trace) -> list[Sample]:
    """One sample per branch that trains a token. Work and memory are those of the tapes that come out."""
    if why_dropped(trace) is not None:
        return []
    samples: list[Sample] = []
    trained: set[int] = set()
    for branch, leaf in enumerate(_leaves(trace.calls)):
        sample = _sample_of(trace, branch, _chain(trace.calls, leaf), trained)
        if sample.mask.any():
            samples.append(sample)
    return samples


def _tape(call: CallRecord) -> TokenSegment | None:
    """What the call added. A call that failed was not answered, and nothing may rest on it."""
    return call.tokens if call.failure is None else None


def _why_tapes_unfit(calls: Sequence[CallRecord]) -> DropReason | None:
    lengths: dict[int, int] = {-1: 0}
    shapes: dict[int, tuple[int, ...]] = {-1: ()}
    sampled = False
    for index, call in enumerate(calls):
        if (tape := _tape(call)) is None:
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


def _leaves(calls: Sequence[CallRecord]) -> list[int]:
    """Calls whose tape no other call extends, oldest first."""
    tapes = {index: tape for index, call in enumerate(calls) if (tape := _tape(call)) is not None}
    extended = {tape.base for tape in tapes.values()}
    return [index for index in tapes if index not in extended]


def _chain(calls: Sequence[CallRecord], leaf: int) -> list[tuple[int, TokenSegment]]:
    """The calls from the root of the tape to `leaf`, with what each added."""
    chain: list[tuple[int, TokenSegment]] = []
    while leaf >= 0:
        tape = calls[leaf].tokens
        assert tape is not None, "why_dropped has seen every base"
        chain.append((leaf, tape))
        leaf = tape.base
    return chain[::-1]


def _sample_of(trace: Trace, branch: int, chain: list[tuple[int, TokenSegment]], trained: set[int]) -> Sample:
    """`trained` are the calls that an older branch trains; those of this chain join them."""
    span_lengths = np.fromiter((len(tape.ids) for _, tape in chain), np.int64, len(chain))
    ends = np.cumsum(span_lengths).tolist()
    ids = np.empty(ends[-1], np.int32)
    mask = np.zeros(ends[-1], np.bool_)
    logprobs = np.empty(ends[-1], np.float32)
    for (call, tape), end in zip(chain, ends, strict=True):
        place = slice(end - len(tape.ids), end)
        ids[place] = tape.ids
        logprobs[place] = tape.logprobs
        if call not in trained:
            mask[place] = tape.sampled
            trained.add(call)
    routed, routed_hole = _land_routing(chain, ends)
    return Sample(
        task_id=trace.task_id,
        attempt=trace.attempt,
        branch=branch,
        reward=trace.reward,
        ids=ids,
        mask=mask,
        logprobs=logprobs,
        span_lengths=span_lengths,
        span_versions=np.fromiter((trace.calls[call].policy_version for call, _ in chain), np.int64, len(chain)),
        routed=routed,
        routed_hole=routed_hole,
    )


def _land_routing(chain: list[tuple[int, TokenSegment]], ends: list[int]) -> tuple[Experts | None, Mask | None]:
    """Every row at its absolute position, each copied once, whether payloads hold what is new or the whole tape.

    Where two payloads hold the same row the older one stands: it tells how the token was sampled, the newer one only
    how it was read again. The row of a call's last sampled token is known to later payloads alone, so whatever a
    payload says about it is not taken.
    """
    payloads = [(tape, end) for (_, tape), end in zip(chain, ends, strict=True) if tape.routing is not None]
    if not payloads:
        return None, None
    wires = [tape.routing.rows for tape, _ in payloads if tape.routing is not None]
    rows: Experts = np.zeros((ends[-1], *wires[0].shape[1:]), np.result_type(*wires))
    hole = np.ones(ends[-1], np.bool_)
    landed = 0
    for tape, end in payloads:
        assert tape.routing is not None
        start, wire = tape.routing.start, tape.routing.rows
        stop = min(start + len(wire), end - int(tape.sampled[-1:].any()))
        if (fresh := max(start, landed)) < stop:
            rows[fresh:stop] = wire[fresh - start : stop - start]
            hole[fresh:stop] = False
        # A call without routing left a hole that a payload of the whole tape fills.
        late = start + np.flatnonzero(hole[start : min(stop, landed)])
        rows[late] = wire[late - start]
        hole[late] = False
        landed = max(landed, stop)
    return rows, hole
