"""The registry adds up under threads, stays small, and refuses what would confuse its readers."""

import sys
import threading

import pytest

from rollwright.telemetry import LoopLagMonitor, MemoryTrimmer, Metrics, publish_health


def values_of(metrics):
    return {(point.name, point.labels): point.value for point in metrics.snapshot().points}


def test_counters_gauges_and_histograms_are_seen_in_a_snapshot():
    metrics = Metrics()
    metrics.counter("rollouts_total").inc()
    metrics.counter("rollouts_total").inc(2)
    metrics.gauge("in_flight").set(7)
    metrics.gauge("in_flight").dec(3)
    metrics.histogram("turn_seconds").observe(0.5)
    seen = values_of(metrics)
    assert seen["rollouts_total", ()] == 3
    assert seen["in_flight", ()] == 4
    assert (seen["turn_seconds", ()].count, seen["turn_seconds", ()].p99) == (1, 0.5)


def test_each_set_of_labels_is_a_series_whatever_their_order():
    metrics = Metrics()
    metrics.counter("failures_total", layer="engine", kind="a").inc()
    metrics.counter("failures_total", kind="a", layer="engine").inc()
    metrics.counter("failures_total", kind="b", layer="engine").inc()
    seen = values_of(metrics)
    assert seen["failures_total", (("kind", "a"), ("layer", "engine"))] == 2
    assert seen["failures_total", (("kind", "b"), ("layer", "engine"))] == 1


def test_the_same_series_is_the_same_object():
    metrics = Metrics()
    assert metrics.gauge("depth", queue="a") is metrics.gauge("depth", queue="a")
    assert metrics.gauge("depth", queue="a") is not metrics.gauge("depth", queue="b")


@pytest.fixture
def hasty_threads():
    """Threads take turns as often as the interpreter can."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


def test_no_increment_is_lost_between_threads(hasty_threads):
    metrics = Metrics()

    def work():
        for number in range(2000):
            metrics.counter("n", worker=str(number % 3)).inc()
            metrics.gauge("g").inc()
            metrics.histogram("h").observe(1.0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = values_of(metrics)
    assert sum(value for (name, _), value in seen.items() if name == "n") == 8000
    assert seen["g", ()] == 8000
    assert (seen["h", ()].count, seen["h", ()].sum) == (8000, 8000.0)


def test_too_many_series_share_one():
    metrics = Metrics(max_series=3)
    for number in range(10):
        metrics.counter("calls_total", model=f"m{number}").inc()
    seen = values_of(metrics)
    assert sum(name == "calls_total" for name, _ in seen) == 4
    assert seen["calls_total", (("model", "other"),)] == 7
    assert seen["metrics_overflowed_total", ()] == 7


def test_a_name_keeps_its_kind_and_its_labels():
    metrics = Metrics()
    metrics.counter("x", a="1")
    with pytest.raises(ValueError, match="counter with labels"):
        metrics.gauge("x", a="1")
    with pytest.raises(ValueError, match="now asked for"):
        metrics.counter("x", b="1")


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a.b", "a b", "ä", "a\n"])
def test_names_that_readers_cannot_read_are_refused(name):
    with pytest.raises(ValueError, match="no metric or label name"):
        Metrics().counter(name)


@pytest.mark.parametrize("amount", [-1, float("nan")])
def test_a_counter_does_not_fall(amount):
    metrics = Metrics()
    with pytest.raises(ValueError, match="gauge"):
        metrics.counter("n").inc(amount)
    assert values_of(metrics)["n", ()] == 0


def test_snapshots_are_ordered():
    metrics = Metrics()
    for name in ("b", "a", "c"):
        for label in ("2", "1"):
            metrics.counter(name, x=label)
    points = [(point.name, point.labels) for point in metrics.snapshot().points]
    assert points == sorted(points)


async def test_a_process_publishes_its_health():
    metrics = Metrics()
    async with LoopLagMonitor() as monitor, MemoryTrimmer() as trimmer:
        publish_health(metrics, monitor, trimmer)
        seen = values_of(metrics)
    assert seen["process_rss_bytes", ()] > 1e6
    assert seen["process_peak_rss_bytes", ()] > 1e6
    assert seen["loop_lag_seconds", (("quantile", "0.99"),)] >= 0
    assert seen["loop_stalls", (("kind", "gil_starved"),)] == 0
    assert seen["memory_trimmer_enabled", ()] in (0.0, 1.0)
