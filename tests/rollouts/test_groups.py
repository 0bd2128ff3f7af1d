"""The group stage: who is scored when some failed, who may add to a transcript, and that nothing outlives the group."""

import asyncio
import gc
import weakref
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollwright.engines.function import FunctionEngine
from rollwright.harnesses import Limits
from rollwright.rollouts import Environment, GroupSettings
from rollwright.serve.protocol import amend, amendments
from rollwright.tasks import Task, Taskset, group_reward, reward
from rollwright.wire import EngineRefused, EngineUnavailable, Layer, Stop, TaskBroken, user


class Nothing(Taskset):
    def tasks(self):
        return []


class Ranked(Task):
    @reward
    def own(self, trace) -> float:
        return float(trace.attempt)

    @group_reward(weight=10)
    def best(self, traces) -> list[float]:
        return [float(trace is traces[-1]) for trace in traces]


class Answers:
    """Answers call number k with `plan[k]`, an exception or text; then always with "ok"."""

    def __init__(self, *plan):
        self._plan = list(plan)
        self.calls = 0

    def __call__(self, call):
        self.calls += 1
        answer = self._plan.pop(0) if self._plan else "ok"
        if isinstance(answer, Exception):
            raise answer
        return answer


async def run(answers, task=None, n=3, seen=None, **options):
    async with Environment(Nothing(), **options).serving(FunctionEngine(answers), "m") as serving:
        on_trace = seen.append if seen is not None else None
        return await serving.run_attempts(task or Ranked(id="a", prompt="hi"), range(n), on_trace=on_trace)


async def test_score_takes_those_that_are_there():
    traces = await run(Answers(EngineUnavailable("away")))
    assert [trace.failure is None for trace in traces] == [False, True, True]
    assert [trace.reward for trace in traces] == [0.0, 1.0, 12.0]


async def test_drop_fails_the_others_and_names_the_one():
    traces = await run(Answers(EngineUnavailable("away")), group=GroupSettings("drop"))
    assert [trace.failure.kind for trace in traces] == ["EngineUnavailable", "GroupBroken", "GroupBroken"]
    assert {trace.failure.layer for trace in traces} == {Layer.ENGINE}
    assert traces[1].failure.message == "a#0 of its group failed: away"
    assert all(trace.stop is Stop.FAILED and "best" not in trace.scores for trace in traces)


async def test_drop_leaves_a_whole_group_alone():
    traces = await run(Answers(), group=GroupSettings("drop"))
    assert [trace.reward for trace in traces] == [0.0, 1.0, 12.0]


async def test_wait_runs_a_failed_rollout_again_and_shows_it_once():
    answers, seen = Answers(EngineUnavailable("away"), "ok", "ok", EngineUnavailable("still")), []
    traces = await run(answers, group=GroupSettings("wait", retries=2), seen=seen)
    assert [trace.reward for trace in traces] == [0.0, 1.0, 12.0]
    assert sorted(trace.attempt for trace in seen) == [0, 1, 2]
    assert answers.calls == 5


async def test_wait_gives_up_and_then_drops():
    answers = Answers(*[EngineUnavailable("away")] * 5)
    traces = await run(answers, n=2, group=GroupSettings("wait", retries=1))
    assert [trace.failure.kind for trace in traces] == ["EngineUnavailable", "EngineUnavailable"]
    assert answers.calls == 4
    traces = await run(Answers(EngineRefused("no")), n=2, group=GroupSettings("wait", retries=1))
    assert [trace.failure.kind for trace in traces] == ["EngineRefused", "GroupBroken"]


class Judged(Task):
    """The group stage asks every member back."""

    held: ClassVar[list] = []

    @group_reward
    async def asked_back(self, members, traces) -> list[float]:
        Judged.held[:] = members
        await asyncio.gather(*(member.go_on("Are you sure?") for member in members[1:]))
        assert [len(member.trace.nodes) for member in members[1:]] == [4] * (len(members) - 1)
        return [float(len(member.trace.messages)) for member in members]


async def test_a_group_reward_may_go_on_with_a_members_conversation():
    seen = []
    traces = await run(Answers("one", "two", "three", "yes", "no"), Judged(id="a", prompt="hi"), seen=seen)
    assert [trace.failure for trace in traces] == [None, None, None]
    assert [message.text for message in traces[1].messages] == ["hi", "two", "Are you sure?", "yes"]
    assert [(trace.turns, trace.reward) for trace in traces] == [(1, 2.0), (2, 4.0), (2, 4.0)]
    # What travels from a worker: the grown ones whole, the other as its scores.
    ending = amendments([0, 1, 2], seen, traces)
    assert [change.trace is None for change in ending.amendments] == [True, False, False]
    assert amend(seen, ending) == traces


async def test_nobody_goes_on_when_the_group_is_over_or_the_turns_are_spent():
    await run(Answers(), Judged(id="a", prompt="hi"))
    for member in Judged.held:
        with pytest.raises(TaskBroken, match="is over and cannot go on"):
            await member.go_on(user("more?"))
    traces = await run(Answers(), Judged(id="a", prompt="hi"), limits=Limits(max_turns=1))
    assert {trace.failure.message.rpartition(": ")[2] for trace in traces} == {"turns_spent"}


class Endless(Task):
    @group_reward
    async def never(self, traces) -> list[float]:
        await asyncio.Event().wait()
        return [0.0 for _ in traces]


async def test_scoring_together_has_a_deadline():
    traces = await run(Answers(), Endless(id="a", prompt="hi"), limits=Limits(score_timeout_s=0.01))
    assert {trace.failure.message for trace in traces} == {"scoring the group took longer than 0.01 s"}


class Kept:
    """What a rollout leaves in its state."""

    alive: ClassVar[weakref.WeakSet] = weakref.WeakSet()

    def __init__(self):
        self.alive.add(self)


class Keeping(Task):
    outcomes: tuple[str, ...] = ()
    ending: str = "scored"

    def setup(self, state, trace):
        state["kept"] = Kept()
        if self.outcomes[trace.attempt] == "broken":
            raise ValueError("broken")

    @group_reward
    async def together(self, states, traces) -> list[float]:
        assert all(state["kept"] in Kept.alive for state in states)
        if self.ending == "breaks":
            raise ValueError("the reward broke")
        if self.ending in ("hangs", "cancelled"):
            STAGE.set()
            await asyncio.Event().wait()
        return [1.0 for _ in traces]


STAGE = asyncio.Event()


class Fitful(FunctionEngine):
    """Fails or hangs where it is told to."""

    def __init__(self, outcomes):
        super().__init__(lambda call: "ok")
        self._outcomes = list(outcomes)

    async def complete(self, call):
        outcome = self._outcomes.pop(0) if self._outcomes else "fine"
        if outcome == "away":
            raise EngineUnavailable("away")
        if outcome == "hangs":
            STAGE.set()
            await asyncio.Event().wait()
        return await super().complete(call)


@given(
    outcomes=st.lists(st.sampled_from(["fine", "broken", "away", "hangs"]), min_size=1, max_size=4),
    ending=st.sampled_from(["scored", "breaks", "hangs", "cancelled"]),
    partial=st.sampled_from(["score", "drop", "wait"]),
)
@settings(max_examples=15, deadline=None)
def test_nothing_of_a_group_outlives_it_however_it_ends(outcomes, ending, partial):
    async def play():
        global STAGE
        STAGE = asyncio.Event()
        limits = Limits(timeout_s=0.02, score_timeout_s=0.02 if ending == "hangs" else 30.0)
        environment = Environment(Nothing(), limits=limits, group=GroupSettings(partial))
        task = Keeping(id="a", prompt="hi", outcomes=tuple(outcomes), ending=ending)
        async with environment.serving(Fitful(outcomes), "m") as serving:
            group = asyncio.create_task(serving.run_group(task, len(outcomes)))
            if ending == "cancelled":
                staged = asyncio.create_task(STAGE.wait())
                await asyncio.wait({group, staged}, return_when=asyncio.FIRST_COMPLETED)
                staged.cancel()
                group.cancel()
            (result,) = await asyncio.gather(group, return_exceptions=True)
            assert isinstance(result, list | asyncio.CancelledError)
            assert "0 rollouts in flight" in repr(serving)
            del result, group
            # The loop itself holds the step that it is in, and with it what we waited for.
            await asyncio.sleep(0)
            gc.collect()
            assert not list(Kept.alive)

    asyncio.run(play())


class Housed(Task):
    asked: ClassVar[list] = []

    def runtime_settings(self):
        Housed.asked.append("box")
        return {}

    def limit_settings(self):
        Housed.asked.append("limits")
        return {"max_turns": 2}

    async def setup(self, runtime, state):
        state["box"] = runtime.name


async def test_what_all_rollouts_of_a_group_stand_on_is_asked_for_once():
    Housed.asked.clear()
    traces = await run(Answers(), Housed(id="a", prompt="hi"), n=3)
    assert [trace.failure for trace in traces] == [None, None, None]
    assert sorted(Housed.asked) == ["box", "limits"]


async def test_one_rollout_is_cancelled_and_the_others_are_scored():
    waiting, go = [], asyncio.Event()

    class Slow(FunctionEngine):
        async def complete(self, call):
            waiting.append(call)
            await go.wait()
            return await super().complete(call)

    task = Ranked(id="a", prompt="hi")
    async with Environment(Nothing()).serving(Slow(lambda call: "ok"), "m") as serving:
        group = asyncio.create_task(serving.run_group(task, 3))
        while len(waiting) < 3:
            await asyncio.sleep(0)
        assert serving.cancel_rollout(task, 2)
        assert not serving.cancel_rollout(task, 7)
        await asyncio.sleep(0)
        assert not serving.cancel_rollout(task, 2)
        go.set()
        traces = await group
    assert [trace.stop for trace in traces] == [Stop.FINISHED, Stop.FINISHED, Stop.CANCELLED]
    assert [trace.reward for trace in traces] == [0.0, 11.0, 0.0]


async def test_cancelling_a_group_is_not_mistaken_for_cancelling_one_of_it():
    asked = asyncio.Event()

    class Stuck(FunctionEngine):
        async def complete(self, call):
            asked.set()
            await asyncio.Event().wait()

    task = Ranked(id="a", prompt="hi")
    async with Environment(Nothing()).serving(Stuck(lambda call: "ok"), "m") as serving:
        group = asyncio.create_task(serving.run_group(task, 2))
        await asked.wait()
        serving.cancel_rollout(task, 0)
        group.cancel()
        with pytest.raises(asyncio.CancelledError):
            await group


async def test_calls_are_marked_with_the_version_that_was_served_when_they_began():
    async with Environment(Nothing()).serving(FunctionEngine(lambda call: "ok"), "m") as serving:
        versions = []
        for version in (0, 3, 4):
            await serving.tell_policy(version)
            trace = await serving.run(Task(id="a", prompt="hi"), version)
            versions.append(trace.calls[0].policy_version)
    assert versions == [0, 3, 4]
