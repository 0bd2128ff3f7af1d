"""Rates and pauses under a clock that the test moves."""

from __future__ import annotations

import random
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.engines.pacing import LONGEST_PAUSE_S, Bucket, pause_s, retry_after_s


@given(st.integers(1, 6000), st.lists(st.tuples(st.floats(0, 30), st.integers(1, 50)), min_size=1, max_size=60))
def test_no_stretch_of_time_gets_more_than_the_rate_allows(per_minute: int, asks: list[tuple[float, int]]) -> None:
    bucket = Bucket(per_minute, now=0.0)
    now, uses = 0.0, []
    for passed_s, amount in asks:
        now += passed_s
        uses.append((now + bucket.take(amount, now), amount))
    moments = [moment for moment, _ in uses]
    assert moments == sorted(moments), "a later ask never goes first"
    for start in range(len(uses)):
        used = 0.0
        for moment, amount in uses[start:]:
            used += amount
            # The amount that is used at the very end may reach back in time, so the last one counts in full.
            allowed = bucket.capacity + (moment - uses[start][0]) * bucket.per_s + uses[start][1]
            assert used <= allowed + 1e-6


def test_what_is_given_back_is_used_by_the_next() -> None:
    bucket = Bucket(60, now=0.0)
    assert bucket.take(1, now=0.0) == 0.0
    assert bucket.take(1, now=0.0) == pytest.approx(1.0)
    bucket.give_back(1, now=0.0)
    assert bucket.take(1, now=0.0) == pytest.approx(1.0)
    assert bucket.take(10, now=0.0) == pytest.approx(11.0)


def test_a_slow_limit_lets_the_first_call_go_at_once() -> None:
    assert Bucket(1, now=0.0).take(1, now=0.0) == 0.0


@given(st.integers(0, 10_000), st.integers())
def test_a_pause_is_jittered_over_its_whole_range_and_bounded(attempt: int, seed: int) -> None:
    pause = pause_s(attempt, None, random.Random(seed))
    assert 0 <= pause <= min(LONGEST_PAUSE_S, 0.5 * 2 ** min(attempt, 10))


@given(st.integers(0, 20), st.floats(0, 1000), st.integers())
def test_a_pause_is_never_shorter_than_the_server_asked(attempt: int, asked_s: float, seed: int) -> None:
    assert asked_s <= pause_s(attempt, asked_s, random.Random(seed)) <= asked_s + 1


NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "Retry-After": "7"}, 0.25),
        ({"retry-after-ms": "soon", "Retry-After": "7"}, 7.0),
        ({"Retry-After": formatdate(NOW + 90, usegmt=True)}, 90.0),
        ({"Retry-After": formatdate(NOW - 90, usegmt=True)}, 0.0),
        ({"Retry-After": "later"}, None),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "Thu, 99 Foo 99999 00:00:00"}, None),
    ],
)
def test_what_the_server_asks_for(headers: dict[str, str], expected: float | None) -> None:
    assert retry_after_s(headers, NOW) == expected


@given(st.text(max_size=40))
def test_no_header_breaks_the_reading(value: str) -> None:
    asked = retry_after_s({"Retry-After": value}, NOW)
    assert asked is None or asked >= 0
