"""Trimming is paced, happens in a thread, and is absent without a complaint where the C library has none."""

import gc
import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.telemetry import MemoryTrimmer, peak_rss_bytes, rss_bytes
from rollwright.telemetry.memory import MB, RestPacer, TrimPacer, find_malloc_trim


def test_rss_is_that_of_this_process():
    before = rss_bytes()
    block = bytearray(b"x" * (64 * MB))
    assert rss_bytes() - before > 48 * MB
    assert peak_rss_bytes() >= rss_bytes() - 8 * MB
    assert len(block) == 64 * MB


def test_growth_and_time_must_both_have_passed():
    pacer = TrimPacer(growth_bytes=100, min_interval_s=10.0, now=0.0, rss=1000)
    assert not pacer.due(5.0, 2000)
    assert not pacer.due(20.0, 1099)
    assert pacer.due(20.0, 1100)
    pacer.trimmed(20.0, 1050)
    assert not pacer.due(29.0, 5000)
    assert pacer.due(30.0, 1150)


def test_growth_is_counted_from_the_lowest_point():
    pacer = TrimPacer(growth_bytes=100, min_interval_s=0.0, now=0.0, rss=1000)
    assert not pacer.due(1.0, 500)
    assert pacer.due(2.0, 600)


@given(st.lists(st.tuples(st.floats(0.01, 5), st.integers(0, 10_000)), max_size=60))
def test_trims_are_never_closer_than_the_interval(steps):
    pacer = TrimPacer(growth_bytes=1, min_interval_s=10.0, now=0.0, rss=0)
    now, trims = 0.0, [0.0]
    for wait_s, rss in steps:
        now += wait_s
        if pacer.due(now, rss):
            pacer.trimmed(now, rss)
            trims.append(now)
    assert all(later - earlier >= 10.0 for earlier, later in itertools.pairwise(trims))


def test_a_rest_after_work_is_noticed_once():
    pacer = RestPacer(now=0.0, cpu_s=0.0)
    assert not any(pacer.due(float(second), 0.0) for second in range(1, 10)), "it has not worked"
    assert not any(pacer.due(10.0 + second, 0.8 * second) for second in range(1, 10)), "it works"
    assert [pacer.due(20.0 + second, 8.0 + 0.01 * second) for second in range(6)].count(True) == 1
    assert not any(pacer.due(30.0 + second, 8.1 + 0.01 * second) for second in range(60))
    assert not pacer.due(100.0, 20.0)
    assert pacer.due(103.0, 20.0)


class FakeHeap:
    """A heap that grows at every look until it is trimmed."""

    def __init__(self):
        self.rss = 0
        self.trimmed_in = []
        self.trimmed = threading.Event()

    def read(self):
        self.rss += 10
        return self.rss

    def trim(self):
        self.rss = 0
        self.trimmed_in.append(threading.current_thread().name)
        if len(self.trimmed_in) >= 3:
            self.trimmed.set()
        return True


def trimmer_of(heap, find_trim):
    return MemoryTrimmer(growth_bytes=50, min_interval_s=0.0, poll_s=0.001, find_trim=find_trim, read_rss=heap.read)


def test_it_trims_again_and_again_in_its_own_thread():
    heap = FakeHeap()
    with trimmer_of(heap, lambda: heap.trim) as trimmer:
        assert heap.trimmed.wait(20)
    stats = trimmer.stats
    assert set(heap.trimmed_in) == {"rollwright-trimmer"}
    assert stats.enabled
    assert stats.trims == len(heap.trimmed_in) >= 3
    assert stats.freed_bytes >= 3 * 50


async def test_on_a_loop_it_leaves_no_thread_behind():
    heap = FakeHeap()
    async with trimmer_of(heap, lambda: heap.trim):
        pass
    assert "rollwright-trimmer" not in {thread.name for thread in threading.enumerate()}


def test_without_malloc_trim_it_is_off_and_says_so():
    heap = FakeHeap()
    with trimmer_of(heap, lambda: None) as trimmer:
        assert "rollwright-trimmer" not in {thread.name for thread in threading.enumerate()}
    assert not trimmer.stats.enabled
    assert trimmer.stats.trims == 0


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_a_c_library_without_the_symbol_is_no_error(error, monkeypatch):
    class Musl:
        def __init__(self, name):
            pass

        def __getattr__(self, name):
            raise error(name)

    monkeypatch.setattr("ctypes.CDLL", Musl)
    assert find_malloc_trim() is None


def test_the_real_trim_runs_and_collects_nothing():
    trim = find_malloc_trim()
    if trim is None:
        pytest.skip("this C library has no malloc_trim")
    collections = []
    gc.callbacks.append(lambda phase, info: collections.append(phase))
    try:
        assert trim() in (True, False)
    finally:
        gc.callbacks.pop()
    assert collections == []
