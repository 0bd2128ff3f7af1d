# ruff: noqa: ASYNC251
"""Lag is weighted by time. The books need no loop; the monitor is proven on a real one."""

import asyncio
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.telemetry import LoopLagMonitor
from rollwright.telemetry.lag import LagBook

TENTH = 0.125
"""An interval that binary fractions hold exactly."""


def played(lags, interval_s=TENTH):
    """A book after ticks that were late by `lags`, and the time after the last."""
    book = LagBook(0.0, interval_s)
    now = 0.0
    for lag in lags:
        now = book.due + lag
        book.tick(now)
    return book, now


def test_a_freeze_of_30_s_is_300_missed_ticks():
    book = LagBook(0.0)
    book.tick(0.1)
    book.tick(30.19)
    seen = book.snapshot(30.19)
    assert seen.ticks == 1 + 300
    assert seen.max_s == pytest.approx(29.99)
    assert seen.p50_s == pytest.approx(15, rel=0.1)
    assert seen.p99_s == pytest.approx(29.7, rel=0.1)
    assert seen.blocked_fraction == pytest.approx(300 / 301)


def test_a_short_freeze_in_a_long_run_moves_the_tail_and_not_the_middle():
    book, now = played([0.001] * 990 + [10 * TENTH - 0.001])
    seen = book.snapshot(now)
    assert seen.ticks == 1000
    assert seen.p50_s == pytest.approx(0.001, rel=0.1)
    assert seen.p99_s == pytest.approx(0.001, rel=0.1)
    assert seen.blocked_fraction == 10 / 1000


@given(st.lists(st.floats(0, 50), max_size=40))
def test_every_interval_of_time_is_one_tick(lags):
    """However time passes, ticks counted and time elapsed agree, and the next tick is in the future."""
    book, now = played(lags)
    assert book.snapshot(now).ticks == round((book.due - TENTH) / TENTH)
    assert now < book.due <= now + TENTH * (1 + 1e-9)


@given(st.lists(st.floats(0, 5), min_size=1, max_size=20), st.integers(0, 20))
def test_intervals_add_up_to_the_whole(lags, cut):
    book, now = LagBook(0.0, TENTH), 0.0
    parts = []
    for number, lag in enumerate(lags):
        if number == cut:
            parts.append(book.take_interval(now))
        now = book.due + lag
        book.tick(now)
    parts.append(book.take_interval(now))
    whole = book.snapshot(now)
    assert sum(part.ticks for part in parts) == whole.ticks
    assert max(part.max_s for part in parts) == whole.max_s
    assert sum(part.elapsed_s for part in parts) == pytest.approx(whole.elapsed_s)
    assert book.take_interval(now).ticks == 0


def test_a_freeze_is_seen_while_it_lasts_and_booked_once():
    book = LagBook(0.0)
    during = book.snapshot(5.05)
    assert during.ticks == 50
    assert during.max_s == pytest.approx(4.95)
    assert book.take_interval(5.05) == during
    book.tick(10.05)
    assert book.snapshot(10.05).ticks == 100


def test_an_early_tick_is_no_lag():
    book = LagBook(0.0)
    assert book.tick(0.09) == pytest.approx(0.2)
    assert book.snapshot(0.09).max_s == 0.0


@pytest.mark.blocks_loop
async def test_the_monitor_sees_a_blocked_loop():
    async with LoopLagMonitor(0.005) as monitor:
        async with asyncio.timeout(20):
            while not any("test_the_monitor_sees_a_blocked_loop" in stall.stack for stall in monitor.stalls):
                time.sleep(0.3)
                await asyncio.sleep(0.05)
        seen = monitor.snapshot()
        assert seen.ticks >= 50
        assert seen.blocked_fraction > 0
        assert monitor.take_interval().ticks >= 50
        assert seen.max_s > 0.2
        assert sum(monitor.stall_counts.values()) == len(monitor.stalls)


async def test_nothing_is_left_when_it_ends():
    before = set(threading.enumerate())
    async with LoopLagMonitor():
        assert {thread.name for thread in set(threading.enumerate()) - before} == {"rollwright-watchdog"}
    assert "rollwright-watchdog" not in {thread.name for thread in threading.enumerate()}


async def test_without_a_watchdog_there_is_no_thread():
    before = threading.active_count()
    async with LoopLagMonitor(stall_over_s=None) as monitor:
        assert threading.active_count() == before
        assert monitor.stalls == ()
        assert monitor.stall_counts == {}


def test_reading_before_entering_is_a_mistake():
    with pytest.raises(RuntimeError, match="before it is entered"):
        LoopLagMonitor().snapshot()
