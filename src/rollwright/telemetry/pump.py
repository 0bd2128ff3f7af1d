"""Carries snapshots of a registry to sinks, away from the event loop.

One thread takes a snapshot each interval; each sink has a thread and a short queue of its own, so a sink that hangs
delays nobody. When its queue is full the oldest snapshot goes: counters and histograms are totals, the next one tells
the same and more. A sink that fails is counted, logged once, and asked again at the next snapshot; it never ends a run.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

import msgspec

from .metrics import Metrics, MetricsSnapshot
from .periodic import PeriodicThread

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Where snapshots go. All three are called in one thread that belongs to this sink."""

    def open(self) -> None: ...
    def write(self, snapshot: MetricsSnapshot) -> None: ...
    def close(self) -> None: ...


class SinkStats(msgspec.Struct, frozen=True):
    sink: str
    written: int
    failures: int
    dropped: int
    """Snapshots that a slow sink never saw."""


class _Feed:
    """One sink with its thread and queue."""

    def __init__(self, sink: Sink, queue_size: int) -> None:
        self.sink = sink
        self.written = self.failures = self.dropped = 0
        self._open = False
        # None is the end.
        self._queue: queue.Queue[MetricsSnapshot | None] = queue.Queue(maxsize=queue_size)
        self._thread = threading.Thread(target=self._run, name=f"rollwright-sink-{self.name}", daemon=True)

    @property
    def name(self) -> str:
        return type(self.sink).__name__

    def start(self) -> None:
        self._thread.start()

    def put(self, item: MetricsSnapshot | None) -> None:
        """Never waits. Only the pump puts, so after making room there is room."""
        if self._queue.full():
            try:
                self._queue.get_nowait()
                self.dropped += 1
            except queue.Empty:
                pass
        self._queue.put_nowait(item)

    def join(self, within_s: float) -> bool:
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        # This thread is a daemon that lives as long as its pump: the wait ends with the None that stop() puts.
        while (snapshot := self._queue.get()) is not None:
            self._guarded(snapshot)
        if self._open:
            self._guarded(None)

    def _guarded(self, snapshot: MetricsSnapshot | None) -> None:
        """The border: a sink's failure is a number and one line in the log, whatever it is."""
        try:
            self._deliver(snapshot)
        except Exception:
            self.failures += 1
            if self.failures == 1:
                logger.warning("Metrics sink %s failed; further failures are only counted.", self.name, exc_info=True)

    def _deliver(self, snapshot: MetricsSnapshot | None) -> None:
        if snapshot is None:
            self.sink.close()
            return
        if not self._open:
            self.sink.open()
            self._open = True
        self.sink.write(snapshot)
        self.written += 1


class MetricsPump:
    """`with MetricsPump(metrics, [sink]):` or `async with`. The end of the block writes one last snapshot."""

    def __init__(
        self,
        metrics: Metrics,
        sinks: Sequence[Sink],
        *,
        interval_s: float = 5.0,
        queue_size: int = 8,
        close_within_s: float = 5.0,
    ) -> None:
        self._metrics = metrics
        self._close_within_s = close_within_s
        self._feeds = [_Feed(sink, queue_size) for sink in sinks]
        self._timer = PeriodicThread("rollwright-metrics", interval_s, lambda late_s: self._pump(), self._end)
        self._collect_failures = 0
        self._running = False

    @property
    def stats(self) -> tuple[SinkStats, ...]:
        return tuple(SinkStats(feed.name, feed.written, feed.failures, feed.dropped) for feed in self._feeds)

    def _pump(self) -> None:
        try:
            snapshot = self._metrics.snapshot()
        except Exception:
            # A collector is foreign code. The next interval asks it again.
            self._collect_failures += 1
            if self._collect_failures == 1:
                logger.warning("Metrics could not be collected; further failures are silent.", exc_info=True)
            return
        for feed in self._feeds:
            feed.put(snapshot)

    def _end(self) -> None:
        """The last snapshot, and the end for every sink."""
        self._pump()
        for feed in self._feeds:
            feed.put(None)

    def start(self) -> None:
        self._running = True
        for feed in self._feeds:
            feed.start()
        self._timer.start()

    def stop(self) -> None:
        """Write what there is, within `close_within_s` for all sinks together; a sink that hangs is left behind."""
        if not self._running:
            return
        self._running = False
        self._timer.close(self._close_within_s)
        deadline = time.monotonic() + self._close_within_s
        for feed in self._feeds:
            if not feed.join(max(deadline - time.monotonic(), 0.0)):
                logger.warning("Metrics sink %s did not finish within %g s.", feed.name, self._close_within_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        # Asked at once, because a cancelled to_thread may never have begun.
        self._timer.ask_to_stop()
        await asyncio.to_thread(self.stop)
