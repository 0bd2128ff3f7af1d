"""Requests by their deadlines. One that ended long before its own is forgotten in time, with all that it holds."""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar


class Ending(Protocol):
    expires: float
    over: bool


R = TypeVar("R", bound=Ending)


class Deadlines(Generic[R]):
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, R]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: R) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (request.expires, self._serial, request))

    def due(self, now: float, alive: int) -> list[R]:
        """Those past their deadline that are not over, each told once. `alive` is how many are not over in all."""
        due: list[R] = []
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].over):
            request = heapq.heappop(self._heap)[2]
            if not request.over:
                due.append(request)
        if len(self._heap) > 2 * alive + 64:
            self._heap = [entry for entry in self._heap if not entry[2].over]
            heapq.heapify(self._heap)
        return due
