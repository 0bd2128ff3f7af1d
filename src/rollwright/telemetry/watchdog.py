"""Catches a loop in the act: a thread that notices a late loop, keeps the loop thread's stack, and says why it is late.

    LOOP_BLOCKED   the loop thread computes, or sits in a call that waits: the stack names the culprit
    GIL_STARVED    the loop thread wants to run, other threads of this process hold the interpreter
    CPU_STARVED    the process gets no CPU, or was stopped: the machine is at fault, not the code

The verdict rests on what the kernel counted for the loop thread between its last sign of life and now (`cputime`), not
on the watchdog being on time: it needs the GIL too. A stall in which it could not run is still recorded, without stack.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections import Counter, deque
from enum import StrEnum

import msgspec

from .cputime import ThreadMeter, ThreadUse
from .periodic import PeriodicThread

log = logging.getLogger("rollwright.telemetry")

WARN_EVERY_S = 10.0
"""A loop that is busy all the time is told of now and then, not at every turn."""


class StallKind(StrEnum):
    LOOP_BLOCKED = "loop_blocked"
    GIL_STARVED = "gil_starved"
    CPU_STARVED = "cpu_starved"


class Stall(msgspec.Struct, frozen=True):
    """One stretch of time in which the loop ran nothing new."""

    started: float
    """Seconds since the epoch."""
    duration_s: float
    kind: StallKind
    stack: str
    """The loop thread's stack when the stall passed the threshold; empty when the watchdog could not run either."""


class Evidence(msgspec.Struct, frozen=True):
    """What happened during a stall. None is "this platform does not tell"."""

    wall_s: float
    loop_cpu_s: float | None
    run_delay_s: float | None
    slices: int | None
    process_cpu_s: float
    watchdog_late_s: float
    """How much of the time the watchdog itself was kept from running."""


GIL_WAKES_PER_S = 20
"""A thread that waits for the GIL wakes 200 times a second or more (every switch interval); one that sleeps, hardly."""


def classify(seen: Evidence) -> StallKind:
    """Where the loop thread spent most of the stall: on a CPU, queueing for one, or asleep; and asleep for what."""
    wall_s = max(seen.wall_s, 1e-9)
    cpu_s = seen.loop_cpu_s or 0.0
    delay_s = seen.run_delay_s or 0.0
    asleep_s = max(wall_s - cpu_s - delay_s, 0.0)
    if cpu_s >= max(delay_s, asleep_s):
        return StallKind.LOOP_BLOCKED
    if delay_s >= asleep_s:
        return StallKind.CPU_STARVED
    if seen.watchdog_late_s > wall_s / 2 and seen.process_cpu_s < wall_s / 4:
        return StallKind.CPU_STARVED
    return StallKind.GIL_STARVED if _waits_for_gil(seen, wall_s) else StallKind.LOOP_BLOCKED


def _waits_for_gil(seen: Evidence, wall_s: float) -> bool:
    others_cpu_s = seen.process_cpu_s - (seen.loop_cpu_s or 0.0)
    if seen.slices is not None:
        return seen.slices >= GIL_WAKES_PER_S * wall_s and others_cpu_s >= wall_s / 10
    # Without the loop thread's own clock, a computing loop and a computing neighbour look the same: blame the loop.
    return seen.loop_cpu_s is not None and others_cpu_s >= wall_s / 2


class _Reading(msgspec.Struct, frozen=True):
    at: float
    loop: ThreadUse
    process_cpu_s: float
    watchdog_late_s: float


def _between(before: _Reading, after: _Reading) -> Evidence:
    return Evidence(
        wall_s=after.at - before.at,
        loop_cpu_s=_minus(after.loop.cpu_s, before.loop.cpu_s),
        run_delay_s=_minus(after.loop.run_delay_s, before.loop.run_delay_s),
        slices=None if after.loop.slices is None else after.loop.slices - (before.loop.slices or 0),
        process_cpu_s=after.process_cpu_s - before.process_cpu_s,
        watchdog_late_s=after.watchdog_late_s - before.watchdog_late_s,
    )


def _minus(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


class StallWatchdog:
    """Started and closed on the loop that it watches."""

    def __init__(self, stall_over_s: float = 0.1, *, keep: int = 64) -> None:
        self._stall_over_s = stall_over_s
        self._beat_s = stall_over_s / 5
        self._stalls: deque[Stall] = deque(maxlen=keep)
        self._counts: Counter[str] = Counter()
        # Written on the loop, read by the thread: each late beat as (when it was due, when it came).
        self._gaps: deque[tuple[float, float]] = deque(maxlen=keep)
        self._due = 0.0
        self._late_s = 0.0
        self._stack: tuple[float, str] | None = None
        self._warned_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._thread = PeriodicThread("rollwright-watchdog", self._beat_s, self._look, self._finish)

    def start(self) -> None:
        self._ident = threading.get_ident()
        self._meter = ThreadMeter(self._ident, threading.get_native_id())
        self._baseline = self._read()
        self._schedule()
        self._thread.start()

    async def aclose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._thread.aclose()

    def _finish(self) -> None:
        self._settle(self._read())
        self._meter.close()

    @property
    def stalls(self) -> tuple[Stall, ...]:
        """The latest ones, oldest first."""
        return tuple(self._stalls)

    @property
    def counts(self) -> dict[str, int]:
        """How many of each kind, of all time."""
        return dict(self._counts)

    def _schedule(self) -> None:
        self._due = time.monotonic() + self._beat_s
        self._timer = asyncio.get_running_loop().call_later(self._beat_s, self._on_beat)

    def _on_beat(self) -> None:
        now = time.monotonic()
        if now - self._due > self._stall_over_s:
            self._gaps.append((self._due, now))
        self._schedule()

    def _look(self, late_s: float) -> None:
        self._late_s += late_s
        reading = self._read()
        due = self._due
        if self._gaps:
            self._settle(reading)
        elif reading.at - due > self._stall_over_s and self._stack is None:
            self._stack = (due, self._loop_stack())
        if reading.at - due < self._beat_s:
            self._baseline = reading

    def _read(self) -> _Reading:
        return _Reading(time.monotonic(), self._meter.read(), time.process_time(), self._late_s)

    def _loop_stack(self) -> str:
        frame = sys._current_frames().get(self._ident)
        if frame is None:
            return ""
        # Places only: quoting the source would read it from disk while the loop hangs, and keep all of it in memory.
        places = traceback.walk_stack(frame)
        lines = [f"{place.f_code.co_filename}:{number} in {place.f_code.co_qualname}" for place, number in places]
        return "\n".join(reversed(lines))

    def _settle(self, reading: _Reading) -> None:
        """Book the stalls that are over."""
        kind = classify(_between(self._baseline, reading))
        while self._gaps:
            due, came = self._gaps.popleft()
            stack = self._stack[1] if self._stack is not None and self._stack[0] == due else ""
            began = time.time() - (time.monotonic() - due)
            stall = Stall(started=began, duration_s=came - due, kind=kind, stack=stack)
            self._stalls.append(stall)
            self._counts[kind.value] += 1
            self._warn(stall)
        self._stack = None

    def _warn(self, stall: Stall) -> None:
        """Told where the code is at fault and the culprit has a name."""
        now = time.monotonic()
        if stall.kind is not StallKind.LOOP_BLOCKED or not stall.stack or now - self._warned_at < WARN_EVERY_S:
            return
        self._warned_at = now
        log.warning("the event loop was held for %.0f ms by\n%s", stall.duration_s * 1000, stall.stack)
