"""How long a stream may be silent. One timer per stream, moved when it fires: setting a deadline for each of a hundred
pieces costs as much as reading them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Silence:
    """While the block runs, `expired` is called once if nothing comes for longer than is allowed: for `first_s` at
    first, for `then_s` after each word, and for nobody knows how long after `left_s` in all."""

    def __init__(self, first_s: float, then_s: float, left_s: float, expired: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._expired = expired
        self._allowed_s, self._then_s = first_s, then_s
        self._heard_at = self._loop.time()
        self._last = self._heard_at + left_s
        """The deadline of the whole stream."""
        self._rests = False
        self._timer: asyncio.TimerHandle | None = None

    def heard(self) -> None:
        """Something came, or may come from now on."""
        self._heard_at = self._loop.time()
        if self._allowed_s is not self._then_s or self._rests:
            self._allowed_s, self._rests = self._then_s, False
            self._set()

    def rest(self) -> None:
        """Nobody listens, so nobody waits."""
        self._rests = True

    def __enter__(self) -> Self:
        self._set()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        self._rests = True
        if self._timer is not None:
            self._timer.cancel()

    @property
    def _until(self) -> float:
        return min(self._heard_at + self._allowed_s, self._last)

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._until, self._fired)

    def _fired(self) -> None:
        self._timer = None
        if self._rests:
            return
        # Timers of some loops come up to a millisecond early.
        if self._loop.time() < self._until - 2e-3:
            self._set()
        else:
            self._expired()
