"""Advantages are centred on the group's finished members."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.orchestrator import group_centred

members = st.lists(st.tuples(st.floats(-1e9, 1e9), st.booleans()), min_size=1, max_size=16)


def centred(rewards, finished=None, **options):
    finished = [True] * len(rewards) if finished is None else finished
    return group_centred(np.array(rewards, float), np.array(finished), **options)


@given(members, st.booleans())
def test_advantages_equal_the_textbook(group, divide_by_std):
    rewards, finished = [r for r, _ in group], [f for _, f in group]
    kept = [reward for reward, counts in group if counts]
    advantages = centred(rewards, finished, divide_by_std=divide_by_std)
    mean = statistics.fmean(kept) if kept else 0.0
    scale = (statistics.pstdev(kept) if len(set(kept)) > 1 else 1.0) if divide_by_std and kept else 1.0
    if scale > 1e-6:
        textbook = [(reward - mean) / scale if counts else 0.0 for reward, counts in group]
        assert advantages.tolist() == pytest.approx(textbook, rel=1e-6, abs=1e-6 * (1 if divide_by_std else 1e9))
    assert np.isfinite(advantages).all()


@given(st.floats(-1e9, 1e9), st.integers(1, 9), st.booleans())
def test_a_group_of_equals_gets_exactly_zero(reward, size, divide_by_std):
    assert not centred([reward] * size, divide_by_std=divide_by_std).any()


def test_failed_members_neither_set_the_mean_nor_get_an_advantage():
    assert centred([1.0, 0.0, 77.0], [True, True, False]).tolist() == [0.5, -0.5, 0.0]
    assert centred([1.0, float("nan")], [True, False]).tolist() == [0.0, 0.0]


def test_tiny_rewards_have_a_deviation_too():
    assert centred([0.0, 1e-300], divide_by_std=True).tolist() == [-1.0, 1.0]
