"""A bound on rollouts in flight: whoever comes first is let in first, with the weight of what it brings."""

from __future__ import annotations

import asyncio
from collections import deque


class Window:
    """`size` may change while others wait. Something heavier than the whole window is let in alone."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __repr__(self) -> str:
        return f"<Window {self.used} of {self.size} used, {len(self._waiting)} waiting>"

    def try_enter(self, weight: int) -> bool:
        """Go in if there is room and nobody waits."""
        if self._waiting or not self._fits(weight):
            return False
        self.used += weight
        return True

    async def enter(self, weight: int) -> None:
        if self.try_enter(weight):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((weight, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(weight)
            else:
                self._waiting = deque(entry for entry in self._waiting if entry[1] is not turn)
                self.admit()
            raise

    def leave(self, weight: int) -> None:
        self.used -= weight
        self.admit()

    def admit(self) -> None:
        """Let in whoever has room now."""
        while self._waiting:
            weight, turn = self._waiting[0]
            if turn.done():
                self._waiting.popleft()
                continue
            if not self._fits(weight):
                return
            self._waiting.popleft()
            self.used += weight
            turn.set_result(None)

    def _fits(self, weight: int) -> bool:
        return self.used + weight <= self.size or not self.used
