"""Branches of a trace, laid out before a token is moved.

A draft says how large a sample is and which arrays of the trace lie where in its columns. Filling it makes the sample
in memory; landing.py writes the same runs straight to their places in a file. The work here is one step per call
along a branch, never one per token. Not covered: where routed experts belong (routing.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from rollwright.wire import TokenSegment, Trace
from rollwright.wire.arrays import DTYPES, AnyArray

from .layout import SampleShape
from .prefixes import rejoined
from .routing import Run, plan_routing
from .samples import Sample, tape_of, why_dropped


@dataclass(frozen=True, slots=True)
class Draft:
    """A sample that is to be."""

    shape: SampleShape
    runs: list[Run]
    """What lies in its columns, which are zero elsewhere."""
    trained_tokens: int

    @property
    def tokens(self) -> int:
        return int(self.shape.span_lengths.sum())


def drafts_of(trace: Trace, *, group: int = -1, source: str = "", masked: bool = False) -> list[Draft]:
    """One draft per branch that trains a token, of a trace whose tapes fit; where `masked`, none of them is trained."""
    tapes = rejoined({index: tape for index, call in enumerate(trace.calls) if (tape := tape_of(call)) is not None})
    drafts: list[Draft] = []
    trained: set[int] = set()
    for branch, leaf in enumerate(_leaves(tapes)):
        chain = _chain(tapes, leaf)
        # A sampled token is trained once, by the oldest branch that has it. Whoever has a call has all calls before
        # it, so what is new in a branch is its end.
        known = next((place for place, call in enumerate(chain) if call not in trained), len(chain))
        trained.update(chain[known:])
        draft = _draft(trace, [tapes[call] for call in chain], chain, known)
        if draft.trained_tokens:
            shape = msgspec.structs.replace(draft.shape, branch=branch, group=group, source=source)
            drafts.append(_masked(shape, draft.runs) if masked else Draft(shape, draft.runs, draft.trained_tokens))
    return drafts


def samples_of(trace: Trace) -> list[Sample]:
    """One sample per branch that trains a token. Work and memory are those of the tapes that come out."""
    return [fill(draft) for draft in drafts_of(trace)] if why_dropped(trace) is None else []


def fill(draft: Draft, *, routing: bool = True) -> Sample:
    """The sample in memory of its own. Other threads run while the arrays move."""
    shape, tokens = draft.shape, draft.tokens
    columns: dict[str, AnyArray] = {name: np.zeros(tokens, DTYPES[kind]) for name, kind in _TOKEN_COLUMNS.items()}
    if routing and shape.routed is not None:
        dtype, *axes = shape.routed
        # Not zeroed as a whole, which would take as long as the copy: rows are there, or are a hole.
        columns["routed"] = np.empty((tokens, *axes), DTYPES[dtype])
        columns["routed_hole"] = np.zeros(tokens, np.bool_)
    for name, row, sources in draft.runs:
        if name in columns:
            stop = row + sum(map(len, sources))
            np.concatenate(sources, out=columns[name][row:stop])
            if name == "routed_hole":
                columns["routed"][row:stop] = 0
    for column in columns.values():
        column.flags.writeable = False
    fields: dict[str, Any] = {**msgspec.structs.asdict(shape), "routed": None, **columns}
    return Sample(**fields)


_TOKEN_COLUMNS = {"ids": "i4", "mask": "b1", "logprobs": "f4"}


def _leaves(tapes: dict[int, TokenSegment]) -> list[int]:
    """Calls whose tape no other call extends, oldest first."""
    extended = {tape.base for tape in tapes.values()}
    return [index for index in tapes if index not in extended]


def _chain(tapes: dict[int, TokenSegment], leaf: int) -> list[int]:
    """The calls from the root of the tape to `leaf`."""
    chain: list[int] = []
    while leaf >= 0:
        chain.append(leaf)
        leaf = tapes[leaf].base
    return chain[::-1]


def _draft(trace: Trace, tapes: list[TokenSegment], chain: list[int], known: int) -> Draft:
    """Of the calls of `chain`, an older branch trains the first `known`."""
    span_lengths = np.fromiter((len(tape.ids) for tape in tapes), np.int64, len(tapes))
    ends = np.cumsum(span_lengths).tolist()
    fresh = [tape.sampled for tape in tapes[known:]]
    routed, rows = plan_routing(tapes, ends)
    runs: list[Run] = [
        ("ids", 0, [tape.ids for tape in tapes]),
        ("mask", ends[known - 1] if known else 0, fresh),
        ("logprobs", 0, [tape.logprobs for tape in tapes]),
        *rows,
    ]
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
    return Draft(shape, runs, int(sum(map(np.count_nonzero, fresh))))


def _masked(shape: SampleShape, runs: list[Run]) -> Draft:
    return Draft(shape, [run for run in runs if run[0] != "mask"], 0)
