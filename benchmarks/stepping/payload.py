"""A rollout as it comes over the wire: many turns, each with what it added to the tape and the experts behind it.

Every turn brings the rows of what it added but for its last sampled token, and first the one that the turn before could
not know, as an engine with router replay does.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rollwright.wire import CallRecord, Routing, TokenSegment, Trace


class Size(NamedTuple):
    tokens: int
    """Per rollout."""
    turns: int
    layers: int
    top_k: int

    @property
    def routing_bytes(self) -> int:
        """Per rollout: all rows but the last, which nobody knows."""
        return (self.tokens - 1) * self.layers * self.top_k if self.layers else 0

    @property
    def payload_bytes(self) -> int:
        """Per rollout: what a sample of it holds."""
        return self.tokens * (9 + self.layers * self.top_k + bool(self.layers))


def calls_of(size: Size) -> tuple[CallRecord, ...]:
    """The calls of one rollout. Two thirds of each turn are read and the rest is sampled."""
    rng = np.random.default_rng(7)
    rows = rng.integers(0, 256, (size.tokens, size.layers, size.top_k), np.uint8) if size.layers else None
    ends = np.linspace(0, size.tokens, size.turns + 1).astype(int).tolist()
    calls = []
    for turn, (begin, end) in enumerate(pairwise(ends)):
        sampled = np.arange(end - begin) >= (end - begin) * 2 // 3
        logprobs = np.where(sampled, np.float32(-0.5), np.float32(0))
        start = max(begin - 1, 0)
        routing = None if rows is None else Routing(start, rows[start : end - 1])
        ids = rng.integers(0, 150_000, end - begin, np.int32)
        calls.append(CallRecord(prompt=0, reply=0, tokens=TokenSegment(turn - 1, ids, sampled, logprobs, routing)))
    return tuple(calls)


def trace_of(calls: tuple[CallRecord, ...], task: str, attempt: int) -> Trace:
    # Rewards differ within a group, so that every rollout has an advantage and is trained.
    return Trace(task_id=task, attempt=attempt, calls=calls, reward=attempt % 7 / 7)
