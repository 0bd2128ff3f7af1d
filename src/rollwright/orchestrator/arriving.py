"""What has come back and is not in its file yet. It is memory of ours, so it has a budget.

A group that was begun comes back whatever we say, so the budget is kept by beginning no further group while it is
spent. What may come nevertheless is what is running, which admission counts by the size of the groups before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rollwright.wire import TokenSegment, Trace


class Arriving:
    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.bytes = 0
        self.groups = 0

    def __repr__(self) -> str:
        return f"<Arriving {self.groups} groups with {self.bytes:,} of {self.budget_bytes:,} bytes>"

    @property
    def has_room(self) -> bool:
        return self.bytes < self.budget_bytes

    @contextmanager
    def counted(self, traces: Sequence[Trace]) -> Iterator[None]:
        """They are here from now on, until the block ends."""
        size = sum(map(arrays_bytes, traces))
        self.bytes += size
        self.groups += 1
        try:
            yield
        finally:
            self.bytes -= size
            self.groups -= 1


def arrays_bytes(trace: Trace) -> int:
    """What the arrays of a trace take. One step per call, however long their tapes are."""
    return sum(_bytes(call.tokens) for call in trace.calls if call.tokens is not None)


def _bytes(tape: TokenSegment) -> int:
    rows = tape.routing.rows.nbytes if tape.routing is not None else 0
    return tape.ids.nbytes + tape.sampled.nbytes + tape.logprobs.nbytes + rows
