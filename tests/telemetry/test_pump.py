"""Snapshots reach every sink that works, and a sink that does not work harms nobody."""

import asyncio
import logging
import threading

import pytest

from rollwright.telemetry import Metrics, MetricsPump


class Remembers:
    """A sink that keeps what it is told."""

    def __init__(self):
        self.words = []
        self.threads = set()
        self.enough = threading.Event()

    def open(self):
        self.words.append("open")

    def write(self, snapshot):
        self.words.append(snapshot)
        self.threads.add(threading.current_thread())
        if len(self.words) > 3:
            self.enough.set()

    def close(self):
        self.words.append("close")


class Hangs(Remembers):
    """A sink whose network is gone."""

    def __init__(self):
        super().__init__()
        self.entered = threading.Event()
        self.released = threading.Event()

    def write(self, snapshot):
        self.entered.set()
        self.released.wait(60)


class Breaks(Remembers):
    def __init__(self, method):
        super().__init__()
        self.calls = 0
        self.method = method

    def _maybe(self, method):
        if method == self.method:
            self.calls += 1
            raise OSError("disk full")

    def open(self):
        self._maybe("open")

    def write(self, snapshot):
        self._maybe("write")

    def close(self):
        self._maybe("close")


def value_of(snapshot, name):
    return next(point.value for point in snapshot.points if point.name == name)


def test_the_last_snapshot_is_written_at_the_end():
    metrics, sink = Metrics(), Remembers()
    with MetricsPump(metrics, [sink], interval_s=3600):
        metrics.counter("n").inc(5)
    assert [type(word) is str and word for word in sink.words] == ["open", False, "close"]
    assert value_of(sink.words[1], "n") == 5


async def test_it_writes_at_every_interval_away_from_the_loop():
    metrics, sink = Metrics(), Remembers()
    async with MetricsPump(metrics, [sink], interval_s=0.001):
        assert await asyncio.to_thread(sink.enough.wait, 20)
    assert len(sink.threads) == 1
    assert threading.current_thread() not in sink.threads
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("rollwright-m", "rollwright-s"))]


async def test_a_cancelled_end_still_ends_the_threads():
    sink = Remembers()
    pump = MetricsPump(Metrics(), [sink], interval_s=3600)
    await pump.__aenter__()
    ending = asyncio.create_task(pump.__aexit__(None, None, None))
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    for thread in threading.enumerate():
        if thread.name.startswith(("rollwright-metrics", "rollwright-sink")):
            await asyncio.to_thread(thread.join, 20)
            assert not thread.is_alive()
    assert sink.words[-1] == "close"


@pytest.mark.parametrize("method", ["open", "write", "close"])
def test_a_failing_sink_is_counted_logged_once_and_harms_nobody(method, caplog):
    metrics, good, bad = Metrics(), Remembers(), Breaks(method)
    with caplog.at_level(logging.WARNING), MetricsPump(metrics, [bad, good], interval_s=0.001) as pump:
        assert good.enough.wait(20)
    bad_stats, good_stats = pump.stats
    assert good_stats.failures == 0
    assert good_stats.written == len(good.words) - 2
    assert bad_stats.failures == bad.calls >= 1
    assert len([record for record in caplog.records if "Breaks failed" in record.message]) == 1


def test_a_hanging_sink_delays_nobody_and_loses_the_oldest(caplog):
    metrics, good, bad = Metrics(), Remembers(), Hangs()
    with MetricsPump(metrics, [bad, good], interval_s=0.001, queue_size=1, close_within_s=0.05) as pump:
        assert bad.entered.wait(20)
        assert good.enough.wait(20)
    bad_stats, good_stats = pump.stats
    assert good_stats.written >= 3
    assert bad_stats.written == 0
    assert bad_stats.dropped >= 1
    assert "Hangs did not finish" in caplog.text
    bad.released.set()
    for thread in threading.enumerate():
        if thread.name == "rollwright-sink-Hangs":
            thread.join(20)
            assert not thread.is_alive()


def test_a_broken_collector_does_not_end_the_pump(caplog):
    metrics, sink = Metrics(), Remembers()
    asked = threading.Semaphore(0)

    def broken():
        asked.release()
        if len(sink.words) == 0:
            sink.words.append("broken once")
            raise OSError("no such file")

    metrics.collect_with(broken)
    with MetricsPump(metrics, [sink], interval_s=0.001) as pump:
        for _ in range(3):
            assert asked.acquire(timeout=20)
    assert pump.stats[0].written >= 2
    assert "could not be collected" in caplog.text


def test_stopping_what_was_not_started_and_stopping_twice_do_nothing():
    sink = Remembers()
    pump = MetricsPump(Metrics(), [sink])
    pump.stop()
    assert sink.words == []
    with MetricsPump(Metrics(), [sink], interval_s=3600) as pump:
        pass
    words = list(sink.words)
    pump.stop()
    assert sink.words == words
