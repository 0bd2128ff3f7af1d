"""Branches of a trace, laid out before a token is moved.

A draft says how large a sample is and which arrays of the trace lie where in its columns. Filling it makes the sample
in memory; landing.py writes the same pieces straight to their places in a file. The work here is one step per call
along a branch, never one per token. Not covered: where routed experts belong (routing.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from rollwright.wire import CallRecord, TokenSegment, Trace
from rollwright.wire.arrays import DTYPES, AnyArray

from .layout import SampleShape
from .routing import Piece, plan_routing
from .samples import Sample, tape_of, why_dropped


@dataclass(frozen=True, slots=True)
class Draft:
    """A sample that is to be."""

    shape: SampleShape
    pieces: list[Piece]
    """What lies in its columns, which are zero elsewhere."""
    trained_tokens: int

    @property
    def tokens(self) -> int:
        return int(self.shape.span_lengths.sum())


def drafts_of(trace: Trace, *, group: int = -1, source: str = "", masked: bool = False) -> list[Draft]:
    """One draft per branch that trains a token, of a trace whose tapes fit; where `masked`, none of them is trained."""
    counts = [0 if (tape := tape_of(call)) is None else int(np.count_nonzero(tape.sampled)) for call in trace.calls]
    drafts: list[Draft] = []
    trained: set[int] = set()
    for branch, leaf in enumerate(_leaves(trace.calls)):
        chain = _chain(trace.calls, leaf)
        # A sampled token is trained once: by the oldest branch that has it.
        fresh = set(chain) - trained
        trained |= fresh
        if any(counts[call] for call in fresh):
            draft = _draft(trace, chain, set() if masked else fresh, counts)
            shape = msgspec.structs.replace(draft.shape, branch=branch, group=group, source=source)
            drafts.append(Draft(shape, draft.pieces, draft.trained_tokens))
    return drafts


def samples_of(trace: Trace) -> list[Sample]:
    """One sample per branch that trains a token. Work and memory are those of the tapes that come out."""
    return [fill(draft) for draft in drafts_of(trace)] if why_dropped(trace) is None else []


def fill(draft: Draft, *, routing: bool = True) -> Sample:
    """The sample in memory of its own. Slice assignment lets other threads run while the arrays move."""
    shape, tokens = draft.shape, draft.tokens
    columns: dict[str, AnyArray] = {name: np.zeros(tokens, DTYPES[kind]) for name, kind in _TOKEN_COLUMNS.items()}
    if routing and shape.routed is not None:
        dtype, *axes = shape.routed
        columns["routed"] = np.zeros((tokens, *axes), DTYPES[dtype])
        columns["routed_hole"] = np.zeros(tokens, np.bool_)
    for name, row, source in draft.pieces:
        if name in columns:
            columns[name][row : row + len(source)] = source
    for column in columns.values():
        column.flags.writeable = False
    fields: dict[str, Any] = {**msgspec.structs.asdict(shape), "routed": None, **columns}
    return Sample(**fields)


_TOKEN_COLUMNS = {"ids": "i4", "mask": "b1", "logprobs": "f4"}


def _leaves(calls: Sequence[CallRecord]) -> list[int]:
    """Calls whose tape no other call extends, oldest first."""
    tapes = {index: tape for index, call in enumerate(calls) if (tape := tape_of(call)) is not None}
    extended = {tape.base for tape in tapes.values()}
    return [index for index in tapes if index not in extended]


def _chain(calls: Sequence[CallRecord], leaf: int) -> list[int]:
    """The calls from the root of the tape to `leaf`."""
    chain: list[int] = []
    while leaf >= 0:
        chain.append(leaf)
        leaf = _segment(calls, leaf).base
    return chain[::-1]


def _segment(calls: Sequence[CallRecord], call: int) -> TokenSegment:
    tape = calls[call].tokens
    assert tape is not None, "why_dropped has seen every base"
    return tape


def _draft(trace: Trace, chain: list[int], fresh: set[int], counts: list[int]) -> Draft:
    """`fresh` are the calls that this branch trains."""
    tapes = [_segment(trace.calls, call) for call in chain]
    span_lengths = np.fromiter((len(tape.ids) for tape in tapes), np.int64, len(tapes))
    ends = np.cumsum(span_lengths).tolist()
    pieces: list[Piece] = []
    for call, tape, end in zip(chain, tapes, ends, strict=True):
        start = end - len(tape.ids)
        pieces += (Piece("ids", start, tape.ids), Piece("logprobs", start, tape.logprobs))
        if call in fresh:
            pieces.append(Piece("mask", start, tape.sampled))
    routed, rows = plan_routing(tapes, ends)
    shape = SampleShape(
        task_id=trace.task_id,
        attempt=trace.attempt,
        branch=0,
        # A number also where the score is none: the reward of a masked sample counts for nothing, and NaN spreads.
        reward=trace.reward if math.isfinite(trace.reward) else 0.0,
        span_lengths=span_lengths,
        span_versions=np.fromiter((trace.calls[call].policy_version for call in chain), np.int64, len(chain)),
        routed=routed,
    )
    return Draft(shape, pieces + rows, sum(counts[call] for call in fresh))
