"""A request of a client that waits for its end, and what has come of it so far."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rollwright.wire import Trace, WireError
from rollwright.wire.codec import Buffer

from .protocol import Ending, Job, Submit, amend

Came = Callable[[Trace, int], None]
"""Told of a trace as it comes, and of its bytes, which are the listener's from then on."""


class Pending:
    def __init__(self, job: Job, asked: Submit, frames: Sequence[Buffer], came: Came | None) -> None:
        self.task_id, self.attempts = job.task_id, job.attempts
        self.asked = asked
        self.frames = frames
        self._came = came
        self.traces: dict[int, Trace] = {}
        self.held_bytes = 0
        """Of what came, as far as nobody was told of it. The client counts; a listener takes off what it was given."""
        self.life = 0
        """Of the link, when it was asked for: what came is counted against that life's budget."""
        self.refetched = 0
        """How often it was asked for again because a result could not be fetched."""
        self.withdrawn: set[int] = set()
        """Rollouts that the caller has cancelled; whoever runs it again is told so."""
        self.over: asyncio.Future[list[Trace]] = asyncio.get_running_loop().create_future()

    def part(self, position: int, trace: Trace, size: int) -> None:
        if position in self.traces or not 0 <= position < self.asked.rollouts:
            raise WireError(f"rollout {position} of {self.asked.label} came twice or was not asked for")
        self.traces[position] = trace
        if self._came is not None:
            self.held_bytes -= size
            self._came(trace, size)

    def done(self, ending: Ending) -> None:
        missing = [position for position in range(self.asked.rollouts) if position not in self.traces]
        if missing:
            raise WireError(f"{self.asked.label} is said to be done, but rollouts {missing} never came")
        # A listener may have cancelled its own request.
        if not self.over.done():
            self.over.set_result(amend([self.traces[position] for position in range(self.asked.rollouts)], ending))

    def forget_parts(self) -> int:
        """All of it runs again. Returns the bytes that were held."""
        self.traces.clear()
        held, self.held_bytes = self.held_bytes, 0
        return held

    def fail(self, error: Exception) -> None:
        if not self.over.done():
            self.over.set_exception(error)
