"""How much memory this process holds, and giving back what the allocator keeps for nothing.

glibc keeps freed memory in its arenas; `malloc_trim` returns it to the system. It takes as long as the heap is big and
locks one arena at a time, so it runs in a thread, only when the process has grown, and not more often than
`min_interval_s`; and once more when the process has come to rest after work, since what it used then is free. Where the
C library has no such function (musl, macOS, Windows) the trimmer says so and does nothing. It never runs the garbage
collector.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from .periodic import PeriodicThread

MB = 1 << 20
_RESTING_SHARE = 0.05
"""A process that uses less of a core than this is at rest."""
_REST_S = 2.5
"""How long it must last."""
_WORK_S = 1.0
"""CPU that must have been used since the last rest, or there is nothing to give back."""


def rss_bytes() -> int:
    """Resident memory of this process now; where the system does not tell, its peak; 0 where it tells neither."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return peak_rss_bytes()


def peak_rss_bytes() -> int:
    """The most resident memory that this process has had."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def find_malloc_trim() -> Callable[[], bool] | None:
    """The C library's trim, or None where it has none. The call lets the GIL go."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    trim.argtypes = [ctypes.c_size_t]
    trim.restype = ctypes.c_int
    return lambda: bool(trim(0))


class TrimPacer:
    """Decides when a trim is worth its price. Time and memory are parameters."""

    def __init__(self, growth_bytes: int, min_interval_s: float, now: float, rss: int) -> None:
        self._growth_bytes = growth_bytes
        self._min_interval_s = min_interval_s
        self._last = now
        self._floor = rss

    def due(self, now: float, rss: int) -> bool:
        # Memory that went down by itself lowers the floor, so that growth is counted from the lowest point.
        self._floor = min(self._floor, rss)
        return rss - self._floor >= self._growth_bytes and now - self._last >= self._min_interval_s

    def trimmed(self, now: float, rss: int) -> None:
        self._last = now
        self._floor = rss


class RestPacer:
    """Finds the moment when a process has come to rest after work. Time and CPU are parameters."""

    def __init__(self, now: float, cpu_s: float) -> None:
        self._looked_at = self._busy_at = now
        self._cpu_s = self._rested_cpu_s = cpu_s

    def due(self, now: float, cpu_s: float) -> bool:
        """True once per rest."""
        if cpu_s - self._cpu_s > _RESTING_SHARE * (now - self._looked_at):
            self._busy_at = now
        self._looked_at, self._cpu_s = now, cpu_s
        if now - self._busy_at < _REST_S or cpu_s - self._rested_cpu_s < _WORK_S:
            return False
        self._rested_cpu_s = cpu_s
        return True


class TrimStats(msgspec.Struct, frozen=True):
    enabled: bool
    """False where the C library has no malloc_trim."""
    trims: int
    freed_bytes: int
    """RSS before minus RSS after, summed; other threads allocate meanwhile, so this is a guide."""
    longest_trim_s: float
    rss_bytes: int


class MemoryTrimmer:
    """`with MemoryTrimmer():` or `async with MemoryTrimmer():` around the life of a process."""

    def __init__(
        self,
        *,
        growth_bytes: int = 64 * MB,
        min_interval_s: float = 10.0,
        poll_s: float = 1.0,
        find_trim: Callable[[], Callable[[], bool] | None] = find_malloc_trim,
        read_rss: Callable[[], int] = rss_bytes,
    ) -> None:
        self._trim = find_trim()
        self._read_rss = read_rss
        self._pacer = TrimPacer(growth_bytes, min_interval_s, time.monotonic(), read_rss())
        self._rest = RestPacer(time.monotonic(), time.process_time())
        self._lock = threading.Lock()
        self._trims = 0
        self._freed_bytes = 0
        self._longest_trim_s = 0.0
        self._thread = PeriodicThread("rollwright-trimmer", poll_s, self._look)

    @property
    def stats(self) -> TrimStats:
        with self._lock:
            return TrimStats(
                enabled=self._trim is not None,
                trims=self._trims,
                freed_bytes=self._freed_bytes,
                longest_trim_s=self._longest_trim_s,
                rss_bytes=self._read_rss(),
            )

    def _look(self, late_s: float) -> None:
        now = time.monotonic()
        at_rest = self._rest.due(now, time.process_time())
        if self._trim is not None and (self._pacer.due(now, self._read_rss()) or at_rest):
            self._trim_now(self._trim)

    def _trim_now(self, trim: Callable[[], bool]) -> None:
        before = self._read_rss()
        began = time.monotonic()
        trim()
        ended = time.monotonic()
        after = self._read_rss()
        self._pacer.trimmed(ended, after)
        with self._lock:
            self._trims += 1
            self._freed_bytes += max(before - after, 0)
            self._longest_trim_s = max(self._longest_trim_s, ended - began)

    def start(self) -> None:
        if self._trim is not None:
            self._thread.start()

    def close(self) -> None:
        self._thread.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        await self._thread.aclose()
