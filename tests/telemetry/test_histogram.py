"""The histogram is exact where it says so and within one bucket elsewhere."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.telemetry.histogram import STEPS, LogHistogram, ramp_above, ramp_length

WIDTH = 2 ** (1 / STEPS) * (1 + 1e-9)
values = st.floats(2.0**-20, 2.0**30)


def filled(numbers):
    histogram = LogHistogram()
    for number in numbers:
        histogram.add(number)
    return histogram


@given(st.lists(values, min_size=1, max_size=200), st.floats(0, 1))
def test_a_quantile_is_at_most_one_bucket_too_high(numbers, q):
    exact = sorted(numbers)[max(math.ceil(q * len(numbers)), 1) - 1]
    assert exact <= filled(numbers).quantile(q) * (1 + 1e-9)
    assert filled(numbers).quantile(q) <= exact * WIDTH


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=50))
def test_count_sum_and_extremes_are_exact(numbers):
    summary = filled(numbers).summary()
    assert (summary.count, summary.min, summary.max) == (len(numbers), min(numbers), max(numbers))
    assert summary.sum == pytest.approx(sum(numbers))


@given(st.lists(values), st.lists(values))
def test_merging_is_adding_both(left, right):
    merged = filled(left)
    merged.merge(filled(right))
    both = filled(left + right)
    assert merged.counts == both.counts
    assert (merged.min, merged.max) == (both.min, both.max)


@given(st.lists(st.floats(0, 1e12), max_size=100))
def test_octaves_count_what_is_not_above_their_bound(numbers):
    for bound, count in filled(numbers).summary().octaves:
        # A value within rounding of a bound may fall on either side of it.
        assert sum(n < bound * (1 - 1e-9) for n in numbers) <= count <= sum(n <= bound * (1 + 1e-9) for n in numbers)


@given(st.integers(0, 3000), st.integers(1, 50))
def test_a_ramp_is_its_values_one_by_one(top, step):
    """Whole numbers, so that the slow way has no rounding of its own."""
    slow, quick = LogHistogram(), LogHistogram()
    for value in range(top, -1, -step):
        slow.add(float(value))
    length = quick.add_ramp(float(top), float(step))
    assert length == slow.count == quick.count
    assert quick.counts == slow.counts
    assert quick.sum == pytest.approx(slow.sum)
    assert (quick.min, quick.max) == (slow.min, slow.max)


@given(st.floats(0, 1e9), st.floats(1e-3, 10), st.floats(0, 1e9))
def test_a_ramp_of_any_length_is_counted_whole(top, step, bound):
    histogram = LogHistogram(2.0**-17, 2.0**12)
    assert histogram.add_ramp(top, step) == histogram.count == ramp_length(top, step)
    assert 0 <= ramp_above(top, step, bound) <= histogram.count
    assert all(count >= 0 for count in histogram.counts)


def test_memory_does_not_grow():
    histogram = LogHistogram()
    size = len(histogram.counts)
    for exponent in range(-300, 300):
        histogram.add(10.0**exponent)
    assert len(histogram.counts) == size < 500
    assert histogram.quantile(1.0) == 1e299


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_spoils_nothing(value):
    histogram = filled([1.0])
    histogram.add(value)
    assert histogram.invalid == 1
    assert histogram.summary() == filled([1.0]).summary()


def test_an_empty_one_is_zeros():
    summary = LogHistogram().summary()
    assert (summary.count, summary.sum, summary.max, summary.p99) == (0, 0.0, 0.0, 0.0)
