"""The sum of a run, against naive ways to compute it."""

from itertools import combinations
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.rollouts import Tally
from rollwright.rollouts.tally import interval, pass_at_k, t_quantile
from rollwright.wire import CallRecord, Failure, Layer, Score, Timing, Trace, Usage


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_draws_that_hold_a_pass(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    draws = list(combinations([True] * c + [False] * (n - c), k))
    assert isclose(pass_at_k(n, c, k), sum(map(any, draws)) / len(draws), abs_tol=1e-12)


@given(st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=4), min_size=1, max_size=8))
def test_the_interval_holds_the_mean(rewards):
    mean, low, high = interval(rewards)
    flat = [reward for task in rewards for reward in task]
    assert isclose(mean, sum(flat) / len(flat), abs_tol=1e-9)
    if low is None:
        assert len(rewards) == 1
    else:
        assert low <= mean + 1e-9
        assert mean <= high + 1e-9


def test_known_intervals():
    assert interval([[1.0], [0.0], [1.0], [1.0]]) == (
        0.75,
        pytest.approx(0.3006, abs=1e-3),
        pytest.approx(0.9544, abs=1e-3),
    )
    assert interval([[1.0]] * 20)[1] == pytest.approx(0.8389, abs=1e-3)
    # Two rollouts that always agree say no more than one.
    once = interval([[0.2], [0.4], [0.9]])
    twice = interval([[0.2] * 2, [0.4] * 2, [0.9] * 2])
    assert once == pytest.approx(twice)
    assert interval([]) == (None, None, None)


@pytest.mark.parametrize(
    ("freedom", "value"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (7, 2.3646), (10, 2.2281), (30, 2.0423)]
)
def test_t_quantile(freedom, value):
    assert t_quantile(freedom) == pytest.approx(value, abs=0.001)


def trace(task, attempt, reward, **more):
    return Trace(
        task, attempt, calls=(CallRecord(0, 1, usage=Usage(10, 2)),), reward=reward,
        scores={"right": Score(reward, 1.0)}, timing=Timing(model_s=2.0, score_s=1.0), **more,
    )  # fmt: skip


def test_a_summary_adds_up():
    tally = Tally(5)
    failure = Failure(Layer.ENGINE, "EngineUnavailable", "away")
    for one in [trace("a", 0, 1.0), trace("a", 1, 0.0), trace("b", 0, 0.0), trace("b", 1, 0.0)]:
        tally.add(one)
    tally.add(trace("c", 0, 0.0, failure=failure))
    summary = tally.summary(wall_s=9.0)
    assert (summary.planned, summary.finished, summary.failed, summary.failures) == (5, 4, 1, {"engine": 1})
    assert (summary.reward_mean, summary.pass_at) == (0.25, {"1": 0.25, "2": 0.5})
    assert (summary.usage, summary.scores) == (Usage(40, 8), {"right": 0.25})
    assert (summary.phases["model"], summary.phases["score"], summary.wall_s) == (2.0, 1.0, 9.0)


def test_what_failed_and_finished_later_has_finished():
    tally = Tally(1)
    tally.add(trace("a", 0, 0.0, failure=Failure(Layer.TASK, "TaskBroken", "nan")))
    tally.add(trace("a", 0, 1.0))
    assert (tally.finished, tally.failed) == (1, 0)


def test_nothing_finished_is_no_number():
    summary = Tally(3).summary()
    assert (summary.reward_mean, summary.reward_low, summary.pass_at) == (None, None, {})
