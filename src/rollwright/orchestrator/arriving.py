"""What has come back and is not in its file yet. It is memory of ours, so it has a budget.

A group that was begun comes back whatever we say, so the budget is kept by beginning no further group while it is
spent. What may come nevertheless is what is running, which admission counts by the size of the groups before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rollwright.wire import TokenSegment, Trace
from rollwright.wire.arrays import AnyArray


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
    return sum(array.nbytes for call in trace.calls if call.tokens for array in arrays_of(call.tokens))


def arrays_of(tape: TokenSegment) -> tuple[AnyArray, ...]:
    """All that is of the size of tokens."""
    columns: tuple[AnyArray, ...] = (tape.ids, tape.sampled, tape.logprobs)
    return columns if tape.routing is None else (*columns, tape.routing.rows)
