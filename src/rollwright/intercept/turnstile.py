"""Requests that arrive all at once, let in over several turns of the loop.

A wave of rollouts that begin together brings hundreds of requests within a millisecond. Serving each takes a fraction
of one, and all of them in one turn of the loop would hold it for a tenth of a second. So a turn begins to serve for two
milliseconds, because the pieces of streams that are under way wait for its end; whoever comes later in it waits for
another one, first come first served. What trickles in never waits."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

TURN_S = 0.002
AT_ONCE = 2


class Turnstile:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turn_began: float | None = None
        """When the first one passed in this turn of the loop; None if nobody has."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __repr__(self) -> str:
        return f"<Turnstile {len(self._waiting)} waiting>"

    async def enter(self) -> None:
        if self._turn_began is None:
            self._begin()
        elif self._waiting or self._clock() - self._turn_began > TURN_S:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn

    def _begin(self) -> None:
        self._turn_began = self._clock()
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Another turn of the loop. Those who have left meanwhile take nobody's place."""
        self._turn_began, passed = None, 0
        while self._waiting and passed < AT_ONCE:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                passed += 1
        if passed:
            self._begin()
