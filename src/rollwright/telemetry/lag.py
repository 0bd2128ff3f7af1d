"""How late an event loop is: 10 ticks a second, weighted by time, in memory that does not grow.

A tick that comes late stands for all the ticks that were due while the loop was away: after a freeze of 30 s, 300 ticks
are counted, late by 30.0, 29.9, 29.8, ... seconds. So a quantile answers "how long would a message wait that arrives
at a random moment", and the blocked fraction is the share of moments at which the loop was away.

`LagBook` is the accounting, without a loop and with time as a parameter. `LoopLagMonitor` ticks on a real loop and has
a watchdog that names the guilty stack. It does not shorten a stall.
"""

from __future__ import annotations

import asyncio
import threading
import time
from types import TracebackType
from typing import Self

import msgspec

from .histogram import LogHistogram, ramp_above
from .watchdog import Stall, StallWatchdog


class LagSnapshot(msgspec.Struct, frozen=True):
    """Lag over a stretch of time."""

    elapsed_s: float
    ticks: int
    """Ticks that came, and ticks that were due while the loop was away."""
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float
    blocked_fraction: float
    """Share of ticks that were later than `blocked_over_s`."""
    octaves: tuple[tuple[float, int], ...] = ()
    """(seconds, how many ticks were no later) for every power of two of the range."""


class _Span:
    """What is known since `began`."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.lags = LogHistogram(2.0**-17, 2.0**12)
        self.blocked = 0

    def record(self, lag_s: float, interval_s: float, blocked_over_s: float) -> None:
        self.lags.add_ramp(lag_s, interval_s)
        self.blocked += ramp_above(lag_s, interval_s, blocked_over_s)

    def copy(self) -> _Span:
        twin = _Span(self.began)
        twin.lags = self.lags.copy()
        twin.blocked = self.blocked
        return twin

    def snapshot(self, now: float) -> LagSnapshot:
        ticks = self.lags.count
        return LagSnapshot(
            elapsed_s=now - self.began,
            ticks=ticks,
            p50_s=self.lags.quantile(0.5),
            p90_s=self.lags.quantile(0.9),
            p99_s=self.lags.quantile(0.99),
            max_s=self.lags.max if ticks else 0.0,
            blocked_fraction=self.blocked / ticks if ticks else 0.0,
            octaves=self.lags.summary().octaves,
        )


class LagBook:
    """The accounting. One thread ticks; any thread may read."""

    def __init__(self, now: float, interval_s: float = 0.1, blocked_over_s: float = 0.02) -> None:
        self.interval_s = interval_s
        self.blocked_over_s = blocked_over_s
        self.due = now + interval_s
        self._lock = threading.Lock()
        self._whole = _Span(now)
        self._intervals: dict[str, _Span] = {}

    def tick(self, now: float) -> float:
        """A tick came. Returns when the next one is due."""
        with self._lock:
            lag_s = max(now - self.due, 0.0)
            for span in (self._whole, *self._intervals.values()):
                span.record(lag_s, self.interval_s, self.blocked_over_s)
            self.due += self.interval_s * (lag_s // self.interval_s + 1)
            return self.due

    def snapshot(self, now: float) -> LagSnapshot:
        """Everything since the start."""
        with self._lock:
            return self._view(self._whole, now)

    def take_interval(self, now: float, consumer: str = "") -> LagSnapshot:
        """Everything since this consumer's last call, or since the start; it begins a new interval for it."""
        with self._lock:
            view = self._view(self._intervals.get(consumer, self._whole), now)
            self._intervals[consumer] = _Span(now)
            return view

    def _view(self, span: _Span, now: float) -> LagSnapshot:
        """A freeze that still lasts is shown as far as it has come, and booked once, when the loop is back."""
        if now - self.due > self.blocked_over_s:
            span = span.copy()
            span.record(now - self.due, self.interval_s, self.blocked_over_s)
        return span.snapshot(now)


class LoopLagMonitor:
    """Watches the loop that enters it: `async with LoopLagMonitor() as monitor`."""

    def __init__(
        self, interval_s: float = 0.1, *, blocked_over_s: float = 0.02, stall_over_s: float | None = 0.1
    ) -> None:
        """`stall_over_s` is where a late loop becomes a recorded stall; None runs no watchdog thread."""
        self._interval_s = interval_s
        self._blocked_over_s = blocked_over_s
        self._watchdog = None if stall_over_s is None else StallWatchdog(stall_over_s)
        self._timer: asyncio.TimerHandle | None = None
        self._book: LagBook | None = None

    async def __aenter__(self) -> Self:
        now = time.monotonic()
        self._book = LagBook(now, self._interval_s, self._blocked_over_s)
        self._schedule(now + self._interval_s)
        if self._watchdog is not None:
            self._watchdog.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._watchdog is not None:
            await self._watchdog.aclose()

    def snapshot(self) -> LagSnapshot:
        """Everything since the start. Any thread may ask, also while the loop hangs."""
        return self._open_book().snapshot(time.monotonic())

    def take_interval(self, consumer: str = "") -> LagSnapshot:
        """Everything since the last call of the same consumer; each has intervals of its own."""
        return self._open_book().take_interval(time.monotonic(), consumer)

    @property
    def stalls(self) -> tuple[Stall, ...]:
        """The latest stalls, oldest first."""
        return () if self._watchdog is None else self._watchdog.stalls

    @property
    def stall_counts(self) -> dict[str, int]:
        """How many stalls of each kind, of all time."""
        return {} if self._watchdog is None else self._watchdog.counts

    def _open_book(self) -> LagBook:
        if self._book is None:
            raise RuntimeError("LoopLagMonitor is read before it is entered")
        return self._book

    def _schedule(self, due: float) -> None:
        # The loop's own clock is not asked: uvloop's stands still while a callback runs, which is what we measure.
        delay_s = max(due - time.monotonic(), 0.0)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_tick)

    def _on_tick(self) -> None:
        self._schedule(self._open_book().tick(time.monotonic()))
