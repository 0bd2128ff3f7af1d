"""Advantages: each kind equals its textbook, members that are not finished count for nothing, state survives."""

from __future__ import annotations

import statistics

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.orchestrator.advantages import (
    AdvantageConfig,
    CustomAdvantage,
    EmaBaseline,
    Grpo,
    LeaveOneOut,
    MaxRl,
    group_centred,
    make_advantage,
)
from rollwright.wire import RollwrightError, UsageError

members = st.lists(st.tuples(st.floats(-1e9, 1e9), st.booleans()), min_size=1, max_size=16)
KINDS = [Grpo(), Grpo(divide_by_std=True), LeaveOneOut(), MaxRl(), EmaBaseline()]


def centred(rewards, finished=None, **options):
    finished = [True] * len(rewards) if finished is None else finished
    return group_centred(np.array(rewards, float), np.array(finished), **options)


def advantages(made, rewards, finished=None, agents=None) -> list[float]:
    finished = [True] * len(rewards) if finished is None else finished
    agents = [""] * len(rewards) if agents is None else agents
    found = made(np.array(rewards, float), np.array(finished, bool), agents, np.full(len(rewards), 7))
    return found.tolist()


@given(members, st.booleans())
def test_advantages_equal_the_textbook(group, divide_by_std):
    rewards, finished = [r for r, _ in group], [f for _, f in group]
    kept = [reward for reward, counts in group if counts]
    found = centred(rewards, finished, divide_by_std=divide_by_std)
    mean = statistics.fmean(kept) if kept else 0.0
    scale = (statistics.pstdev(kept) if len(set(kept)) > 1 else 1.0) if divide_by_std and kept else 1.0
    if scale > 1e-6:
        textbook = [(reward - mean) / scale if counts else 0.0 for reward, counts in group]
        assert found.tolist() == pytest.approx(textbook, rel=1e-6, abs=1e-6 * (1 if divide_by_std else 1e9))
    assert np.isfinite(found).all()


@given(st.floats(0, 1e9), st.integers(1, 9), st.sampled_from(KINDS))
def test_a_group_of_equals_gets_exactly_zero(reward, size, config):
    assert advantages(make_advantage(config), [reward] * size) == pytest.approx([0.0] * size, abs=1e-9 * reward)
    if not isinstance(config, EmaBaseline):
        assert not any(advantages(make_advantage(config), [reward] * size))


@given(members, st.sampled_from(KINDS))
def test_who_is_not_finished_gets_nothing_and_changes_nothing(group, config):
    rewards = [abs(reward) for reward, _ in group]
    finished = [counts for _, counts in group]
    found = advantages(make_advantage(config), rewards, finished)
    kept = [reward for reward, counts in zip(rewards, finished, strict=True) if counts]
    alone = advantages(make_advantage(config), kept) if kept else []
    assert [value for value, counts in zip(found, finished, strict=True) if counts] == pytest.approx(alone)
    assert not any(value for value, counts in zip(found, finished, strict=True) if not counts)
    assert np.isfinite(found).all()


def test_failed_members_neither_set_the_mean_nor_get_an_advantage():
    assert centred([1.0, 0.0, 77.0], [True, True, False]).tolist() == [0.5, -0.5, 0.0]
    assert centred([1.0, float("nan")], [True, False]).tolist() == [0.0, 0.0]


def test_tiny_rewards_have_a_deviation_too():
    assert centred([0.0, 1e-300], divide_by_std=True).tolist() == [-1.0, 1.0]


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9))
def test_leave_one_out_measures_each_by_the_others(rewards):
    textbook = [r - statistics.fmean(rewards[:i] + rewards[i + 1 :]) for i, r in enumerate(rewards)]
    assert advantages(make_advantage(LeaveOneOut()), rewards) == pytest.approx(textbook, rel=1e-6, abs=1e-6)


@given(st.lists(st.booleans(), min_size=1, max_size=16))
def test_maxrl_of_successes_is_the_gradient_of_the_logarithm(successes):
    """K successes of N: (1/N) sum of A_i S_i is the mean score of the successes minus that of all."""
    scores = np.random.default_rng(len(successes)).normal(size=len(successes))
    found = np.array(advantages(make_advantage(MaxRl()), successes))
    won = np.array(successes)
    expected = scores[won].mean() - scores.mean() if won.any() else 0.0
    assert (found * scores).mean() == pytest.approx(expected, abs=1e-12)


def test_maxrl_refuses_rewards_that_are_no_chances():
    with pytest.raises(UsageError, match="rewards of 0 or more, and one is -1"):
        advantages(make_advantage(MaxRl()), [1.0, -1.0])
    assert advantages(make_advantage(MaxRl()), [1.0, -1.0], [True, False]) == [0.0, 0.0]


def test_a_moving_baseline_is_kept_per_agent_and_lags_behind():
    ema = make_advantage(EmaBaseline(decay=0.5))
    assert advantages(ema, [1.0, 3.0, 10.0], agents=["white", "white", "black"]) == [-1.0, 1.0, 0.0]
    assert ema.state() == {"white": 2.0, "black": 10.0}
    assert advantages(ema, [4.0, 0.0], agents=["white", "black"]) == [2.0, -10.0]
    assert ema.state() == {"white": 3.0, "black": 5.0}


@given(st.lists(st.lists(st.floats(0, 10), min_size=1, max_size=4), min_size=2, max_size=8), st.integers(0, 7))
def test_a_baseline_goes_on_from_its_state(groups, cut):
    whole, first, second = (make_advantage(EmaBaseline()) for _ in range(3))
    expected = [advantages(whole, group) for group in groups]
    found = [advantages(first, group) for group in groups[:cut]]
    second.restore(msgspec.json.decode(msgspec.json.encode(first.state())))
    found += [advantages(second, group) for group in groups[cut:]]
    assert found == expected


def double(rewards_G, finished_G, agents_G, tokens_G, by=2.0):  # noqa: N803
    return rewards_G * by


def broken(rewards_G, finished_G, agents_G, tokens_G):  # noqa: N803
    raise KeyError("no such agent")


def short(rewards_G, finished_G, agents_G, tokens_G):  # noqa: N803
    return rewards_G[1:]


def infinite(rewards_G, finished_G, agents_G, tokens_G):  # noqa: N803
    return rewards_G * np.inf


class PerToken:
    def __init__(self, scale: float) -> None:
        self.seen = 0.0
        self.scale = scale

    def __call__(self, rewards_G, finished_G, agents_G, tokens_G):  # noqa: N803
        self.seen += len(rewards_G)
        return self.scale * rewards_G / tokens_G

    def state(self) -> dict[str, float]:
        return {"seen": self.seen}

    def restore(self, state: dict[str, float]) -> None:
        self.seen = state["seen"]


def custom(name: str, **options) -> CustomAdvantage:
    return CustomAdvantage(path=f"{__name__}:{name}", options=options)


def test_an_own_advantage_is_a_function_or_a_class():
    assert advantages(make_advantage(custom("double")), [1.0, 2.0], [True, False]) == [2.0, 0.0]
    assert advantages(make_advantage(custom("double", by=3.0)), [1.0]) == [3.0]
    assert make_advantage(custom("double")).state() == {}
    made = make_advantage(custom("PerToken", scale=14.0))
    assert advantages(made, [1.0, 2.0]) == [2.0, 4.0]
    assert made.state() == {"seen": 2.0}
    again = make_advantage(custom("PerToken", scale=1.0))
    again.restore(made.state())
    assert again.state() == {"seen": 2.0}


@pytest.mark.parametrize(
    ("name", "message"),
    [("broken", "raised KeyError"), ("short", "must give 2 finite"), ("infinite", "must give 2 finite")],
)
def test_an_own_advantage_that_is_wrong_is_named(name, message):
    with pytest.raises(RollwrightError, match=message):
        advantages(make_advantage(custom(name)), [1.0, 2.0])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (custom("dubble"), "did you mean 'double'"),
        (custom("PerToken", scales=1), "could not be made"),
        (CustomAdvantage(path="no_such_module_here:x"), "could not be imported"),
        (CustomAdvantage(path="nowhere"), "not of the form"),
    ],
)
def test_an_own_advantage_that_is_not_there_is_a_wrong_setting(config, message):
    with pytest.raises(UsageError, match=message):
        make_advantage(config)


def test_settings_choose_by_kind():
    def read(**values):
        return msgspec.convert(values, AdvantageConfig)

    assert read(kind="grpo", divide_by_std=True) == Grpo(divide_by_std=True)
    assert read(kind="ema", decay=0.5) == EmaBaseline(decay=0.5)
    assert [read(kind=kind) for kind in ("leave_one_out", "maxrl")] == [LeaveOneOut(), MaxRl()]
    with pytest.raises(msgspec.ValidationError):
        read(kind="maxrl", decay=0.5)
    for decay in (-0.1, 1.0, float("nan")):
        with pytest.raises(UsageError):
            EmaBaseline(decay=decay)
