"""How long a stream may be silent. One timer per stream, moved when it fires: setting a deadline for each of a hundred
pieces costs as much as reading them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Silence:
    """While the block runs, `expired` is called once if nothing comes for longer than was allowed."""

    def __init__(self, left_s: float, expired: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._expired = expired
        self._last = self._loop.time() + left_s
        """The deadline of the whole stream."""
        self._until = math.inf
        self._fires_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def allow(self, seconds: float) -> None:
        """Something came, or may come now; the next thing may take so long."""
        self._until = until = min(self._loop.time() + seconds, self._last)
        if until < self._fires_at:
            self._set()

    def rest(self) -> None:
        """Nobody listens, so nobody waits."""
        self._until = math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        self._until = math.inf
        if self._timer is not None:
            self._timer.cancel()

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires_at = self._until
        self._timer = self._loop.call_at(self._until, self._fired)

    def _fired(self) -> None:
        self._timer, self._fires_at = None, math.inf
        if self._until == math.inf:
            return
        # Timers of some loops come up to a millisecond early.
        if self._loop.time() < self._until - 2e-3:
            self._set()
        else:
            self._expired()
