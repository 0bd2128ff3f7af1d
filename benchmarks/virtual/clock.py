"""Time that jumps to whatever happens next, and lanes: what can do one thing at a time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0

    def at(self, when: float, act: Callable[..., None], *args: Any) -> None:
        # The serial keeps the order of what happens at the same moment, so that a seed tells everything.
        self._serial += 1
        heapq.heappush(self._events, (when, self._serial, act, args))

    def run(self, over: Callable[[], bool]) -> None:
        while self._events and not over():
            self.now, _, act, args = heapq.heappop(self._events)
            act(*args)


class Lane:
    """A core. What comes while it is busy waits its turn."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free_at = 0.0
        self.busy_s = 0.0
        self.longest_wait_s = 0.0

    def do(self, seconds: float, act: Callable[..., None] | None = None, *args: Any) -> None:
        began = max(self._clock.now, self._free_at)
        self.longest_wait_s = max(self.longest_wait_s, began - self._clock.now)
        self._free_at = began + seconds
        self.busy_s += seconds
        if act is not None:
            self._clock.at(self._free_at, act, *args)

    def load(self) -> float:
        """The share of the time that it was busy. Past 1 it has more to do than there was time for."""
        return self.busy_s / self._clock.now if self._clock.now else 0.0
