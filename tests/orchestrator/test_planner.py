"""Dispatch under every order of events: nothing is lost, nothing is stale, nothing waits for ever."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.simulator import ROLLOUT_BYTES, Simulator, World
from rollwright.orchestrator.evals import EvalPlan
from rollwright.orchestrator.plans import GroupsFailed, PlanSettings, StalePolicy
from rollwright.orchestrator.sources import SourcePlan
from rollwright.wire import UsageError


@st.composite
def worlds(draw: st.DrawFn) -> World:
    lag = draw(st.integers(0, 3))
    group_size = draw(st.sampled_from([1, 2, 4, 8]))
    batch_size = draw(st.integers(1, 24))
    plan = PlanSettings(
        steps=draw(st.integers(1, 12)),
        batch_size=batch_size,
        batch_tokens=draw(st.sampled_from([0, 0, 50, 700])),
        follow=draw(st.booleans()),
        lag=lag,
        max_staleness=lag + draw(st.integers(0, 3)),
        stale=draw(st.sampled_from(list(StalePolicy))),
        spare=draw(st.sampled_from([0.0, 0.5, 2.0])),
        max_buffered_bytes=draw(st.sampled_from([1, 20 * ROLLOUT_BYTES, 10**9])),
        max_barren_groups=1000,
        seed=draw(st.integers(0, 2**16)),
    )
    sources = (SourcePlan(name="a", tasks=draw(st.integers(1, 9)), group_size=group_size, ratio=3.0),)
    if draw(st.booleans()):
        sources += (SourcePlan(name="b", tasks=5, group_size=2, sampler="curriculum"),)
    evals = (EvalPlan(name="held out", tasks=3, attempts=2, every=draw(st.integers(1, 4))),)
    return World(
        plan,
        seed=draw(st.integers(0, 2**32)),
        sources=sources,
        evals=evals if draw(st.booleans()) else (),
        failing=draw(st.sampled_from([0.0, 0.1, 0.5])),
        slow=draw(st.sampled_from([0.0, 0.1])),
        crash=draw(st.sampled_from([0.0, 0.0, 0.03])),
        meddling=draw(st.sampled_from([0.0, 0.05])),
    )


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_whatever_happens_the_run_ends_with_exact_books(world):
    simulator = Simulator(world)
    history = simulator.run()
    accounts, plan = simulator.planner.accounts, world.settings
    assert accounts.in_flight == 0, accounts
    assert accounts.trained == len(history.trained_at)
    assert [cut.step for cut in history.batches] == list(range(1, plan.steps + 1))
    for cut in history.batches:
        if not plan.batch_tokens:
            assert len(cut.picks) == plan.batch_size
        else:
            assert len(cut.picks) == 1 or cut.tokens <= plan.batch_tokens
        assert max(cut.staleness) <= plan.max_staleness
        if plan.follow:
            oldest = min(history.oldest[pick.group, pick.member] for pick in cut.picks)
            assert cut.step - 1 - oldest <= plan.max_staleness
    assert not simulator.planner.ready
    assert simulator.planner.buffered_bytes == 0


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_a_crash_trains_the_same_rollouts(world):
    """With lag 0 and nothing that fails, what is trained does not rest on who comes back first, nor on crashes."""
    plan = msgspec.structs.replace(
        world.settings, lag=0, spare=0.0, batch_tokens=0, batch_size=8, max_staleness=50, follow=False
    )
    sources = (SourcePlan(name="a", tasks=5, group_size=4),)
    world = World(plan, seed=world.seed, sources=sources, failing=0.0)
    calm = Simulator(world).run()
    world.crash = 0.1
    crashed = Simulator(world).run()
    assert crashed.trained_at == calm.trained_at


def test_the_budget_holds_back_what_would_be_buffered():
    budget = 60 * ROLLOUT_BYTES
    plan = PlanSettings(steps=9, batch_size=20, follow=True, spare=8.0, max_staleness=9, max_buffered_bytes=budget)
    held = Simulator(World(plan, failing=0.0, slow=0.0)).run()
    free = Simulator(World(msgspec.structs.replace(plan, max_buffered_bytes=10**9), failing=0.0, slow=0.0)).run()
    # The first groups are in flight before anybody knows what a group weighs.
    assert held.most_buffered <= budget + 64 * ROLLOUT_BYTES < free.most_buffered


@pytest.mark.parametrize("lag", [0, 2])
def test_evaluations_do_not_wait_for_training(lag):
    """The trainer is very late, the batch is held and the buffer is full: an evaluation is as quick as its rollouts."""
    plan = PlanSettings(steps=8, batch_size=16, follow=True, lag=lag, max_staleness=9, max_buffered_bytes=1)
    world = World(
        plan,
        evals=(EvalPlan(name="e", tasks=4, attempts=2, every=1),),
        eval_seats=8,
        slow=0.0,
        train_s=500.0,
        failing=0.0,
    )
    history = Simulator(world).run()
    assert [report.version for report in history.evals][: 8 - lag] == list(range(8 - lag))
    # All eight seats begin at once, so a round takes as long as the slowest of four groups of 2 s on average.
    assert max(report.took_s for report in history.evals) < 40


def test_ratios_are_kept():
    plan = PlanSettings(steps=40, batch_size=16)
    sources = (
        SourcePlan(name="a", tasks=9, group_size=4, ratio=3.0),
        SourcePlan(name="b", tasks=9, group_size=2, ratio=1.0),
    )
    simulator = Simulator(World(plan, sources=sources, failing=0.0, slow=0.0))
    simulator.run()
    drawn = {name: source.rollouts for name, source in simulator.planner._sources.state().sources.items()}
    assert drawn["a"] == pytest.approx(3 * drawn["b"], abs=8)


def test_without_anything_to_train_on_the_run_gives_up():
    plan = PlanSettings(steps=2, batch_size=8, max_barren_groups=5)
    with pytest.raises(GroupsFailed, match=r"6 groups in a row.*TaskBroken"):
        Simulator(World(plan, failing=1.0)).run()


def test_a_bound_below_the_lag_is_refused():
    with pytest.raises(UsageError, match="max_staleness 1 must be at least lag 2"):
        PlanSettings(steps=1, batch_size=1, lag=2, max_staleness=1)


def test_a_stale_group_is_cancelled_before_it_is_of_no_use():
    plan = PlanSettings(steps=6, batch_size=4, follow=True, lag=0, max_staleness=1, spare=2.0)
    simulator = Simulator(World(plan, slow=0.5, failing=0.0, train_s=1.0, publish_late=0.0))
    history = simulator.run()
    assert history.cancelled
    assert simulator.planner.accounts.dropped["stale"] > 0
