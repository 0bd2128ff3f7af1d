"""An evaluation: only what is missing is run, what is counted is on disk, drain and drop leave a valid run."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.engines.function import FunctionEngine
from rollwright.rollouts import Environment, Evaluation, Recorder
from rollwright.rollouts.evaluation import units
from rollwright.tasks import Task, Taskset, group_reward, reward
from rollwright.traces import RunDirectory, read_traces
from rollwright.wire import EngineUnavailable


class Nothing(Taskset):
    def tasks(self):
        return []


class One(Task):
    @reward
    def score(self) -> float:
        return 1.0


class Together(Task):
    @group_reward
    def share(self, traces) -> list[float]:
        return [len(traces) for _ in traces]


TASKS = [One(id=str(n), prompt=str(n)) for n in range(10)]


class Gate:
    """An engine that answers when it is told to."""

    def __init__(self):
        self.waiting = 0
        self.open = asyncio.Event()

    async def complete(self, call):
        self.waiting += 1
        await self.open.wait()
        return await FunctionEngine(lambda _: "ok").complete(call)


async def evaluate(path, engine, tasks=TASKS, rollouts=2, concurrency=4, resume=False, during=None):
    run = RunDirectory.resume(path, {}) if resume else RunDirectory.create(path, {})
    earlier = {}
    for trace in read_traces(path):
        earlier.setdefault(trace.task_id, []).append(trace)
    with run:
        async with Environment(Nothing()).serving(engine, "m") as serving, Recorder(run) as recorder:
            evaluation = Evaluation(
                serving,
                tasks,
                rollouts=rollouts,
                concurrency=concurrency,
                recorder=recorder,
                done=run.done,
                earlier=lambda task_id: earlier.get(task_id, ()),
            )
            running = asyncio.create_task(evaluation.run())
            if during:
                await during(evaluation)
            async with asyncio.timeout(30):
                await running
    return evaluation


def keys(path):
    return sorted(trace.key for trace in read_traces(path))


EVERYTHING = sorted((str(n), attempt) for n in range(10) for attempt in range(2))


async def test_everything_is_done_once(tmp_path):
    evaluation = await evaluate(tmp_path, FunctionEngine(lambda call: "ok"))
    assert keys(tmp_path) == EVERYTHING
    assert repr(evaluation) == "<Evaluation 20 of 20, 0 in flight>"


async def test_what_failed_is_done_again_and_what_finished_is_not(tmp_path):
    asked = []

    def answer(call):
        asked.append(call.messages[0].text)
        if call.messages[0].text == "3" and len(asked) <= 20:
            raise EngineUnavailable("away")
        return "ok"

    first = await evaluate(tmp_path, FunctionEngine(answer))
    assert (first.tally.finished, first.tally.failures) == (18, {"engine": 2})
    await evaluate(tmp_path, FunctionEngine(answer), resume=True)
    assert asked[20:] == ["3", "3"]
    assert keys(tmp_path) == EVERYTHING


async def reached(evaluation, gate, width):
    async with asyncio.timeout(20):
        while gate.waiting < width:
            await asyncio.sleep(0)
    assert evaluation.in_flight == width


async def test_draining_finishes_what_runs_and_begins_nothing(tmp_path):
    gate = Gate()

    async def drain(evaluation):
        await reached(evaluation, gate, 4)
        evaluation.drain()
        gate.open.set()

    evaluation = await evaluate(tmp_path, gate, during=drain)
    assert (gate.waiting, evaluation.tally.finished, len(keys(tmp_path))) == (4, 4, 4)
    gate.open.set()
    await evaluate(tmp_path, gate, resume=True)
    assert keys(tmp_path) == EVERYTHING


async def test_dropping_gives_up_what_runs_and_keeps_what_finished(tmp_path):
    gate = Gate()

    async def drop(evaluation):
        await reached(evaluation, gate, 4)
        evaluation.drain()
        evaluation.drop()

    evaluation = await evaluate(tmp_path, gate, during=drop)
    assert (evaluation.tally.finished, evaluation.in_flight, keys(tmp_path)) == (0, 0, [])


async def test_a_disk_that_refuses_ends_the_evaluation(tmp_path, monkeypatch):
    def refuse(self, traces):
        raise OSError("No space left on device")

    monkeypatch.setattr(RunDirectory, "append", refuse)
    with pytest.raises(OSError, match="No space"):
        await evaluate(tmp_path, FunctionEngine(lambda call: "ok"))


async def test_a_group_that_was_cut_short_is_scored_with_its_earlier_members(tmp_path):
    task = Together(id="g", prompt="g")
    await evaluate(tmp_path, FunctionEngine(lambda call: "ok"), [task], rollouts=2)
    await evaluate(tmp_path, FunctionEngine(lambda call: "ok"), [task], rollouts=5, resume=True)
    rewards = {trace.attempt: trace.reward for trace in read_traces(tmp_path)}
    assert rewards == {0: 2.0, 1: 2.0, 2: 5.0, 3: 5.0, 4: 5.0}


async def test_groups_stay_within_the_concurrency(tmp_path):
    gate = Gate()

    async def look(evaluation):
        await reached(evaluation, gate, 4)
        gate.open.set()

    tasks = [Together(id=str(n), prompt=str(n)) for n in range(3)]
    await evaluate(tmp_path, gate, tasks, rollouts=2, concurrency=5, during=look)
    assert len(keys(tmp_path)) == 6


@given(
    st.lists(st.sampled_from([One, Together]), max_size=6),
    st.integers(1, 4),
    st.sets(st.tuples(st.sampled_from("012345"), st.integers(0, 3))),
)
def test_the_plan_is_exactly_what_is_missing(kinds, rollouts, done):
    tasks = [kind(id=str(n), prompt="") for n, kind in enumerate(kinds)]
    planned = [(task.id, attempt) for task, attempts in units(tasks, rollouts, done) for attempt in attempts]
    wanted = {(task.id, attempt) for task in tasks for attempt in range(rollouts)}
    assert len(planned) == len(set(planned))
    assert set(planned) == wanted - done
