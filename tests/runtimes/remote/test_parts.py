"""Patience in creating, and the books of a box's life."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.runtimes.remote import Lifetime, Pace, Retry, create_patiently
from rollwright.wire import RuntimeFault, RuntimeLost


def test_the_books_of_a_lifetime():
    now = 0.0
    books = Lifetime(100, 30, margin_s=5, clock=lambda: now)
    assert (books.left_s(), books.bound(20), books.bound(1000)) == (30, 20, 105)
    now = 25
    books.touch()
    assert books.left_s() == 30
    now = 90
    books.touch()
    assert (books.left_s(), books.bound(1000)) == (10, 15)
    now = 100
    with pytest.raises(RuntimeLost):
        books.check("x")


@given(st.lists(st.floats(0, 5), max_size=60), st.floats(0.1, 3), st.integers(1, 8))
def test_no_window_sees_more_than_the_pace_allows(gaps, every_s, burst):
    now = 0.0
    pace = Pace(every_s, burst, clock=lambda: now)
    turns = []
    for gap in gaps:
        now += gap
        turns.append(now + pace.turn())
    assert turns == sorted(turns)
    for first, later in zip(turns, turns[burst:], strict=False):
        assert later - first >= every_s - 1e-6


def test_a_vendor_that_asks_for_rest_slows_everyone():
    pace = Pace(1.0, 3, clock=lambda: 0.0)
    assert pace.turn() == 0
    pace.delay(40)
    assert pace.turn() >= 40


async def test_a_try_that_timed_out_by_itself_is_not_the_end_of_patience():
    tried = []

    async def create():
        tried.append(len(tried))
        if len(tried) < 3:
            raise TimeoutError("the connection was not made")
        return "box"

    def meaning(error):
        return Retry() if isinstance(error, OSError) else None

    made = await create_patiently(create, meaning, pace=Pace(0.0, 1), within_s=20, base_s=0.001)
    assert (made, tried) == ("box", [0, 1, 2])
    with pytest.raises(RuntimeFault, match=r"no box was created within 0\.02 s \(1 tries\)"):
        await create_patiently(asyncio.Event().wait, meaning, pace=Pace(0.0, 1), within_s=0.02)


async def test_tries_end_where_the_meaning_says_so():
    tried = []

    async def create():
        tried.append(len(tried))
        if len(tried) < 3:
            raise ConnectionError("busy")
        raise ValueError("never")

    def meaning(error):
        return Retry() if isinstance(error, ConnectionError) else None

    with pytest.raises(ValueError, match="never"):
        await create_patiently(create, meaning, pace=Pace(0.0, 1), within_s=20, base_s=0.001)
    assert tried == [0, 1, 2]
    tried.clear()
    with pytest.raises(RuntimeFault, match="after 2 tries: busy"):
        await create_patiently(create, meaning, pace=Pace(0.0, 1), within_s=20, base_s=0.001, tries=2)
