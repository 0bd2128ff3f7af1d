"""How long a stream may be silent. One timer per stream, moved when it fires: setting a deadline for each of a hundred
pieces costs as much as reading them."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Self

from aiohttp import StreamReader


class Silence:
    """While the block runs, a read of `content` that waits for longer than was allowed raises TimeoutError."""

    def __init__(self, content: StreamReader, left_s: float) -> None:
        self._content = content
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time() + left_s
        """The deadline of the whole stream."""
        self._until = math.inf
        self._fires_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def allow(self, seconds: float) -> None:
        """A read begins, which may take so long."""
        self._until = min(self._loop.time() + seconds, self._last)
        if self._until < self._fires_at:
            self._set()

    def rest(self) -> None:
        """Nobody reads."""
        self._until = math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
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
            self._content.set_exception(TimeoutError("the stream is silent"))
