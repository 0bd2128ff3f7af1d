"""Rollouts in leased boxes: they say so, share nothing, and a box that cannot be had is one rollout's failure."""

import asyncio
import os

import pytest

from rollwright.engines.function import FunctionEngine
from rollwright.rollouts import Environment
from rollwright.rollouts.boxes import config_for
from rollwright.runtimes import PoolConfig, SubprocessConfig, SubprocessRuntime
from rollwright.tasks import Task, Taskset, group_reward, reward
from rollwright.wire import Layer, RuntimeFault, TaskBroken


class Nothing(Taskset):
    def tasks(self):
        return []


class Messy(Task):
    """Counts what it finds, and leaves something."""

    async def setup(self, runtime, state):
        seen = await runtime.run(["sh", "-c", 'ls -A . "$HOME" "$TMPDIR" | grep -c mess; echo x | tee mess ~/mess'])
        state["found"] = int(seen.text.split()[0])

    @reward
    async def clean(self, runtime, state) -> float:
        if (await runtime.read("mess")).strip() != b"x":
            raise ValueError("my own file is gone")
        if self.info.get("fails"):
            raise ValueError("on purpose")
        return float(state["found"] == 0)


def serving(engine=None, **options):
    config = SubprocessConfig(persistent=True)
    environment = Environment(Nothing(), runtime=options.pop("runtime", config), pool=PoolConfig(**options))
    return environment.serving(engine or FunctionEngine(lambda call: "ok"), "m")


async def rest(pool):
    async with asyncio.timeout(20):
        while pool.stats().resetting or pool.stats().ending:
            await asyncio.wait(set(pool._tasks))


async def test_boxes_are_shared_and_nothing_in_them_is():
    async with serving(max_boxes=2) as run:
        traces = [trace for n in range(4) for trace in await run.run_group(Messy(id=f"t{n}", prompt="hi"), 3)]
        seen = run.pool.stats()
    assert [trace.failure for trace in traces] == [None] * 12
    assert [trace.reward for trace in traces] == [1.0] * 12
    assert len({trace.runtime for trace in traces}) == seen.creates == 2
    assert sorted(trace.info["lease"] for trace in traces) == list(range(1, 13))
    assert all(trace.info["pooled"] is True for trace in traces)
    assert max(trace.info["box_uses"] for trace in traces) > 1
    assert seen.quarantines == 0


async def test_a_failed_and_a_cancelled_rollout_leave_nothing_to_the_next():
    class Stuck:
        async def complete(self, call):
            asked.set()
            await asyncio.Event().wait()

    asked = asyncio.Event()
    async with serving(max_boxes=1) as run:
        failed = await run.run(Messy(id="a", prompt="hi", info={"fails": True}))
        run._engine, engine = Stuck(), run._engine
        rollout = asyncio.create_task(run.run(Messy(id="b", prompt="hi")))
        async with asyncio.timeout(20):
            await asked.wait()
        rollout.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollout
        run._engine = engine
        after = await run.run(Messy(id="c", prompt="hi"))
        assert "<RuntimePool" in repr(run)
    assert failed.failure.layer is Layer.TASK
    assert (after.failure, after.reward, after.info["lease"]) == (None, 1.0, 3)


async def test_a_box_that_cannot_be_had_is_the_rollouts_failure(monkeypatch):
    async def refuse(self):
        raise OSError("no room")

    monkeypatch.setattr(SubprocessRuntime, "start", refuse)
    async with serving(create_tries=2) as run:
        trace = await run.run(Messy(id="a", prompt="hi"))
    assert (trace.failure.layer, trace.runtime) == (Layer.RUNTIME, "")
    assert "no room" in trace.failure.message
    assert "pooled" not in trace.info


class Waiting(Task):
    @reward
    async def box(self, runtime) -> float:
        BOXES.append((await runtime.run(["pwd"])).text.strip())
        return 1.0


BOXES: list[str] = []


async def test_closing_the_environment_frees_the_boxes():
    BOXES.clear()
    async with serving() as run:
        await run.run_group(Waiting(id="a", prompt="hi"), 3)
        await rest(run.pool)
        assert all(os.path.isdir(box) for box in BOXES)
        assert run.pool.stats().idle == 3
    assert not any(os.path.exists(box) for box in BOXES)


async def test_waiting_for_a_box_is_told_apart():
    release = asyncio.Event()

    async def answer(call):
        await release.wait()
        return "ok"

    class Slow:
        async def complete(self, call):
            await answer(call)
            return await FunctionEngine(lambda call: "ok").complete(call)

    async with serving(Slow(), max_boxes=1) as run:
        group = asyncio.create_task(run.run_group(Waiting(id="a", prompt="hi"), 2))
        async with asyncio.timeout(20):
            while not run.pool.stats().waiting or not run.pool.stats().leased:
                await asyncio.sleep(0)
        release.set()
        traces = await group
    assert [trace.failure for trace in traces] == [None, None]
    assert all(trace.timing.queue_s > 0 for trace in traces)


class Imaged(Task):
    memory_mb: int = 0

    def runtime_settings(self):
        if self.memory_mb < 0:
            raise KeyError("memory")
        return {"memory_mb": self.memory_mb} if self.memory_mb else {}

    @reward
    async def limit(self, runtime) -> float:
        told = await runtime.run(["sh", "-c", "ulimit -d"])
        return float(told.text)

    @group_reward(weight=0)
    def none(self, traces) -> list[float]:
        return [0.0 for _ in traces]


@pytest.mark.parametrize("persistent", [True, False])
async def test_a_task_may_ask_for_a_box_of_its_own_kind(persistent):
    async with serving(runtime=SubprocessConfig(persistent=persistent)) as run:
        rewards = {n: (await run.run(Imaged(id=str(n), prompt="", memory_mb=n))).reward for n in (100, 200, 100)}
        broken = await run.run(Imaged(id="x", prompt="", memory_mb=-1))
    assert rewards == {100: 100 * 1024, 200: 200 * 1024}
    assert broken.failure.layer is Layer.TASK


def test_what_a_task_sets_lies_over_the_runs_config():
    config = SubprocessConfig(persistent=True, memory_mb=64)

    class Wants(Task):
        settings: dict = {}

        def runtime_settings(self):
            return self.settings

    def resolved(**settings):
        return config_for(Wants(id="a", settings=settings), config)

    assert resolved() is config
    assert resolved(open_files=9) == SubprocessConfig(persistent=True, memory_mb=64, open_files=9)
    assert resolved(kind="subprocess", cpu_s=3) == SubprocessConfig(persistent=True, memory_mb=64, cpu_s=3)
    for wrong in ({"image": "x"}, {"kind": "submarine"}, {"memory_mb": "much"}):
        with pytest.raises(TaskBroken, match="makes no sense"):
            resolved(**wrong)


async def test_making_a_box_of_its_own_has_a_deadline(monkeypatch):
    from rollwright.harnesses import Limits

    async def hang(self):
        await asyncio.Event().wait()

    monkeypatch.setattr(SubprocessRuntime, "start", hang)
    environment = Environment(Nothing(), limits=Limits(setup_timeout_s=0.01))
    async with environment.serving(FunctionEngine(lambda call: "ok"), "m") as run:
        trace = await run.run(Waiting(id="a", prompt="hi"))
    assert trace.failure.kind == RuntimeFault.__name__
    assert trace.failure.message == "making the box took longer than 0.01 s"
