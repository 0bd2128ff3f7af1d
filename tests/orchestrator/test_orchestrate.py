"""The loop, driven by a scripted environment: exact books, replaced groups, versions, crashes, typed endings."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager

import msgspec
import pytest

from orchestrator.call_trees import FAILURE, assert_same, chat
from rollwright.orchestrator import (
    EvalPlan,
    EvalSource,
    GroupsFailed,
    OrchestrateSettings,
    Orchestrator,
    PolicyLost,
    Source,
    SourcePlan,
    samples_of,
)
from rollwright.orchestrator.concurrency import ConcurrencySettings
from rollwright.orchestrator.contracts import PolicyVersion
from rollwright.orchestrator.policies import PolicyWatch, write_policy
from rollwright.orchestrator.transports import BatchReceiver, FileSender
from rollwright.wire import EngineUnavailable, RollwrightError, Stop, Trace, UsageError


class ScriptedServing:
    """Answers with the traces of a function; remembers what it was asked and how much ran at once."""

    def __init__(self, play=None) -> None:
        self.play = play or (lambda task, attempt: chat(2, task_id=task, attempt=attempt, reward=attempt % 2))
        self.keys: list[tuple[str, int]] = []
        self.running = self.most_running = 0
        self.versions: list[int] = []

    async def run_group(self, task: str, n: int, *, first_attempt: int = 0) -> list[Trace]:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        attempts = range(first_attempt, first_attempt + n)
        self.keys += [(task, attempt) for attempt in attempts]
        try:
            # Later tasks finish first, so that nothing rests on the order of arrival.
            for _ in range(9 - len(self.keys) % 9):
                await asyncio.sleep(0)
            return [self.play(task, attempt) for attempt in attempts]
        finally:
            self.running -= 1

    def cancel_rollout(self, task: str, attempt: int) -> bool:
        return False

    async def tell_policy(self, version: int) -> None:
        self.versions.append(version)


TASKS = [f"task-{n}" for n in range(5)]


def settings_for(tmp_path, **changes) -> OrchestrateSettings:
    return OrchestrateSettings(output=str(tmp_path), **{"steps": 3, "batch_size": 8, "lag": 0, **changes})


@asynccontextmanager
async def orchestrator(tmp_path, serving, tasks=TASKS, *, group_size=2, settings=None, **more):
    settings = settings or settings_for(tmp_path)
    sender = FileSender(settings.output, sync=False)
    plan = SourcePlan(name="train", tasks=len(tasks), group_size=group_size)
    try:
        yield Orchestrator(settings, [Source(plan, serving, tasks)], sender=sender, **more)
    finally:
        await sender.close()


async def orchestrate(settings, serving, tasks=TASKS, on_step=None, **more):
    async with orchestrator(None, serving, tasks, settings=settings, on_step=on_step, **more) as run:
        return await run.run()


async def test_three_steps_end_to_end(tmp_path):
    serving, steps = ScriptedServing(), []
    report = await orchestrate(settings_for(tmp_path), serving, TASKS, steps.append)
    assert (report.steps, report.dispatched, report.trained, report.dropped, report.failed) == (3, 24, 24, {}, {})
    batches = list(BatchReceiver(tmp_path))
    assert [batch.step for batch in batches] == [step.step for step in steps] == [1, 2, 3]
    trained = [(sample.task_id, sample.attempt) for batch in batches for sample in batch.samples]
    assert Counter(trained) == Counter(serving.keys)
    assert len(set(trained)) == 24
    for batch in batches:
        assert batch.policy_version == 1
        for sample in batch.samples:
            (made,) = samples_of(serving.play(sample.task_id, sample.attempt))
            advantage = 0.5 if sample.attempt % 2 else -0.5
            assert_same(sample, msgspec.structs.replace(made, advantage=advantage, group=sample.group, source="train"))
    assert report.tokens == sum(batch.tokens for batch in batches)


async def test_the_metrics_have_a_line_per_step(tmp_path):
    steps = []
    await orchestrate(settings_for(tmp_path), ScriptedServing(), TASKS, steps.append)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line, step in zip(lines, steps, strict=True):
        assert line["metrics"]["reward_mean"] == step.reward_mean == 0.5
        assert line["metrics"]["batch_bytes"] == (tmp_path / f"batch-{step.step:08d}.rwb").stat().st_size


async def test_the_same_seed_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        await orchestrate(settings_for(tmp_path / name, seed=7), ScriptedServing(), TASKS)
    for step in (1, 2, 3):
        name = f"batch-{step:08d}.rwb"
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


async def test_every_rollout_is_accounted_for_once(tmp_path):
    fates = {
        0: lambda trace: trace,
        1: lambda trace: msgspec.structs.replace(trace, failure=FAILURE, stop=Stop.FAILED),
        2: lambda trace: msgspec.structs.replace(trace, trainable=False),
        3: lambda trace: msgspec.structs.replace(trace, stop=Stop.CANCELLED),
    }

    def play(task, attempt):
        return fates[attempt % 4](chat(1, task_id=task, attempt=attempt, reward=attempt % 4))

    report = await orchestrate(settings_for(tmp_path, batch_size=4), ScriptedServing(play), TASKS, group_size=4)
    assert (report.dispatched, report.trained) == (48, 12)
    assert report.dropped == {"inexact": 12, "cancelled": 12}
    assert report.failed == {"engine/EngineUnavailable": 12}
    samples = [sample for batch in BatchReceiver(tmp_path) for sample in batch.samples]
    # The baseline has the trained member (reward 0) and the inexact one (reward 2), nobody else.
    assert {sample.advantage for sample in samples} == {-1.0}


async def test_a_group_that_gives_nothing_is_replaced(tmp_path):
    def play(task, attempt):
        trace = chat(1, task_id=task, attempt=attempt)
        return msgspec.structs.replace(trace, failure=FAILURE) if task == "task-3" else trace

    report = await orchestrate(settings_for(tmp_path, steps=4), ScriptedServing(play), TASKS)
    assert report.trained == 32
    assert report.dispatched == 32 + sum(report.failed.values())
    assert report.failed["engine/EngineUnavailable"] >= 6
    assert all(len(batch.samples) == 8 for batch in BatchReceiver(tmp_path))


@pytest.mark.parametrize("error", [EngineUnavailable("away"), TimeoutError()])
async def test_when_nothing_works_the_run_says_why_and_ends(tmp_path, error):
    def play(task, attempt):
        raise error

    serving = ScriptedServing(play)
    with pytest.raises(GroupsFailed, match=r"EngineUnavailable|group_timed_out"):
        await orchestrate(settings_for(tmp_path, max_barren_groups=3), serving, TASKS)
    assert serving.running == 0
    assert len(serving.keys) <= 2 * (4 + 4)
    assert list(BatchReceiver(tmp_path)) == []


async def test_engines_without_token_ids_are_named(tmp_path):
    def play(task, attempt):
        trace = chat(1, task_id=task, attempt=attempt)
        return msgspec.structs.replace(trace, calls=(msgspec.structs.replace(trace.calls[0], tokens=None),))

    with pytest.raises(GroupsFailed, match="no_tokens"):
        await orchestrate(settings_for(tmp_path), ScriptedServing(play), TASKS)


async def test_a_group_that_hangs_ends_at_its_deadline(tmp_path):
    class Stuck(ScriptedServing):
        async def run_group(self, task, n, *, first_attempt=0):
            self.keys.append((task, first_attempt))
            if len(self.keys) <= 4:
                await asyncio.Event().wait()
            # No await from here on, so that a slow machine cannot make these late.
            return [self.play(task, attempt) for attempt in range(first_attempt, first_attempt + n)]

    report = await orchestrate(settings_for(tmp_path, steps=1, group_timeout_s=0.05), Stuck(), TASKS)
    assert report.failed == {"group_timed_out": 8}
    assert report.trained == 8


@pytest.mark.parametrize("error", [ValueError("a bug"), UsageError("a wish")])
async def test_what_is_not_a_rollouts_fault_ends_the_run_as_itself(tmp_path, error):
    def play(task, attempt):
        raise error

    serving = ScriptedServing(play)
    with pytest.raises(type(error), match=str(error)):
        await orchestrate(settings_for(tmp_path), serving, TASKS)
    assert serving.running == 0


async def test_traces_that_are_missing_are_not_passed_over(tmp_path):
    class Forgetful(ScriptedServing):
        async def run_group(self, task, n, *, first_attempt=0):
            return (await super().run_group(task, n, first_attempt=first_attempt))[1:]

    with pytest.raises(RollwrightError, match="2 rollouts came back with 1"):
        await orchestrate(settings_for(tmp_path), Forgetful(), TASKS)


async def test_cancelling_the_run_cancels_its_groups(tmp_path):
    started = asyncio.Event()

    class Stuck(ScriptedServing):
        async def run_group(self, task, n, *, first_attempt=0):
            self.running += 1
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.running -= 1

    serving = Stuck()
    run = asyncio.create_task(orchestrate(settings_for(tmp_path), serving, TASKS))
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert serving.running == 0


@pytest.mark.parametrize("most", [1, 3])
async def test_no_more_groups_run_at_once_than_allowed(tmp_path, most):
    serving = ScriptedServing()
    concurrency = ConcurrencySettings(initial=2 * most, least=1, adaptive=False)
    await orchestrate(settings_for(tmp_path, batch_size=16, concurrency=concurrency), serving, TASKS)
    assert serving.most_running == most


async def test_no_tasks_is_the_persons_mistake(tmp_path):
    with pytest.raises(UsageError, match="no tasks"):
        await orchestrate(settings_for(tmp_path), ScriptedServing(), [])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"batch_tokens": -1}, "batch_tokens"),
        ({"lag": 3, "max_staleness": 2}, "at least lag 3"),
        ({"seed": -1}, "seed"),
        ({"group_timeout_s": 0.0}, "group_timeout_s"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_sentence(tmp_path, changes, told):
    with pytest.raises(UsageError, match=told):
        settings_for(tmp_path, **changes)
    with pytest.raises(UsageError, match=told):
        msgspec.convert({"output": "x", "batch_size": 8, **changes}, OrchestrateSettings)


# Going on


class Killed(BaseException):
    """The orchestrator dies here."""


@pytest.mark.parametrize("deadly", ["land", "batch", "save", "forget"])
@pytest.mark.parametrize("count", [1, 2, 3])
async def test_a_run_that_dies_anywhere_goes_on_and_trains_the_same(tmp_path, monkeypatch, deadly, count):
    from rollwright.orchestrator.storage import Storage

    await orchestrate(settings_for(tmp_path / "calm"), ScriptedServing())
    calls, work = [0], getattr(Storage, deadly)

    def dies(self, *args):
        calls[0] += 1
        if calls[0] == count:
            raise Killed
        return work(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Storage, deadly, dies)
        with pytest.raises(Killed):
            await orchestrate(settings_for(tmp_path / "torn"), ScriptedServing())
    report = await orchestrate(settings_for(tmp_path / "torn"), ScriptedServing())
    assert report.dispatched == report.trained + sum(report.dropped.values()) + sum(report.failed.values())
    assert trained_in(tmp_path / "torn") == trained_in(tmp_path / "calm")
    assert list((tmp_path / "torn" / "groups").iterdir()) == []


def trained_in(path):
    return [sorted((s.task_id, s.attempt) for s in batch.samples) for batch in BatchReceiver(path, 1)]


async def test_a_finished_run_has_nothing_to_do(tmp_path):
    await orchestrate(settings_for(tmp_path), ScriptedServing())
    again = ScriptedServing()
    report = await orchestrate(settings_for(tmp_path), again)
    assert (report.steps, again.keys) == (3, [])


async def test_more_steps_go_on_where_the_run_ended(tmp_path):
    await orchestrate(settings_for(tmp_path), ScriptedServing())
    again = ScriptedServing()
    report = await orchestrate(settings_for(tmp_path, steps=5), again)
    assert (report.steps, report.trained, len(again.keys)) == (5, 40, 16)
    assert len({key for batch in trained_in(tmp_path) for key in batch}) == 40


@pytest.mark.parametrize(("changes", "more"), [({"seed": 1}, {}), ({}, {"group_size": 4})])
async def test_another_run_does_not_go_on_with_this_one(tmp_path, changes, more):
    await orchestrate(settings_for(tmp_path), ScriptedServing())
    with pytest.raises(UsageError, match=r"was run with (seed|group_size of train)"):
        await orchestrate(settings_for(tmp_path, steps=5, **changes), ScriptedServing(), **more)


# The trainer


async def test_with_lag_0_each_step_waits_for_its_version(tmp_path):
    serving, seen = ScriptedServing(), []

    def on_step(step):
        seen.append((step.step, len(serving.keys)))
        write_policy(tmp_path / "p", PolicyVersion(step.step))

    await orchestrate(
        settings_for(tmp_path), serving, on_step=on_step, policies=PolicyWatch(tmp_path / "p", poll_s=0.005)
    )
    assert seen == [(1, 8), (2, 16), (3, 24)]
    assert serving.versions[:2] == [1, 2]


async def test_a_trainer_that_is_gone_ends_the_run_by_name(tmp_path):
    settings = settings_for(tmp_path, version_timeout_s=0.05)
    with pytest.raises(PolicyLost, match=r"no policy version after 0.*step 2 needs it"):
        await orchestrate(settings, ScriptedServing(), policies=PolicyWatch(tmp_path / "p"))
    assert [batch.step for batch in BatchReceiver(tmp_path, 1)] == [1]


async def test_engines_are_told_after_stale_work_is_cancelled(tmp_path):
    happened = []

    class Slow(ScriptedServing):
        async def run_group(self, task, n, *, first_attempt=0):
            if first_attempt == 0 and task == "task-0":
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    happened.append("cancelled")
                    raise
            return await super().run_group(task, n, first_attempt=first_attempt)

    class Engines:
        async def serve(self, policy):
            await asyncio.sleep(0.01)
            happened.append(f"served {policy.version}")

        async def gauge(self):
            return None

    def on_step(step):
        write_policy(tmp_path / "p", PolicyVersion(step.step))

    def play(task, attempt):
        trace = chat(1, task_id=task, attempt=attempt)
        version = serving.versions[-1] if serving.versions else 0
        return msgspec.structs.replace(
            trace, calls=tuple(msgspec.structs.replace(call, policy_version=version) for call in trace.calls)
        )

    serving = Slow(play)
    settings = settings_for(tmp_path, steps=6, lag=1, max_staleness=1, spare=1.0)
    report = await orchestrate(
        settings, serving, on_step=on_step, policies=PolicyWatch(tmp_path / "p", poll_s=0.005), engines=Engines()
    )
    assert report.dropped["stale"] >= 2
    assert "cancelled" in happened
    assert happened.index("cancelled") < happened.index("served 3")


async def test_evaluations_run_beside_training_and_are_reported(tmp_path):
    reports = []
    held_out = EvalSource(EvalPlan(name="held out", tasks=2, attempts=3, every=1), ScriptedServing(), ["x", "y"])

    def on_step(step):
        write_policy(tmp_path / "p", PolicyVersion(step.step))

    report = await orchestrate(
        settings_for(tmp_path),
        ScriptedServing(),
        on_step=on_step,
        policies=PolicyWatch(tmp_path / "p", poll_s=0.005),
        evals=[held_out],
        on_eval=reports.append,
    )
    assert [(r.source, r.version, r.rollouts) for r in reports][:3] == [("held out", v, 6) for v in (0, 1, 2)]
    assert report.evals == tuple(reports)
    assert report.trained == report.dispatched == 24
    trained = {sample.task_id for batch in BatchReceiver(tmp_path, 1) for sample in batch.samples}
    assert trained <= set(TASKS)


async def test_a_group_can_be_cancelled(tmp_path):
    class Stuck(ScriptedServing):
        async def run_group(self, task, n, *, first_attempt=0):
            if len(self.keys) == 0:
                self.keys.append(("stuck", 0))
                stuck.set()
                await asyncio.Event().wait()
            return await super().run_group(task, n, first_attempt=first_attempt)

    stuck = asyncio.Event()
    async with orchestrator(tmp_path, Stuck()) as run:
        running = asyncio.create_task(run.run())
        await stuck.wait()
        assert not run.cancel_group(77)
        assert run.cancel_group(0)
        assert not run.cancel_group(0)
        report = await running
    assert report.dropped == {"cancelled": 2}
    assert report.trained == 24


async def test_one_rollout_of_a_group_can_be_cancelled(tmp_path):
    cancelled = []

    class Patient(ScriptedServing):
        async def run_group(self, task, n, *, first_attempt=0):
            if not cancelled:
                assert run.cancel_rollout(0, 1)
                assert not run.cancel_rollout(0, 2)
                assert not run.cancel_rollout(99, 0)
            return await super().run_group(task, n, first_attempt=first_attempt)

        def cancel_rollout(self, task, attempt):
            cancelled.append((task, attempt))
            return True

    def play(task, attempt):
        trace = chat(1, task_id=task, attempt=attempt)
        return msgspec.structs.replace(trace, stop=Stop.CANCELLED) if (task, attempt) in cancelled else trace

    async with orchestrator(tmp_path, Patient(play)) as run:
        report = await run.run()
    assert len(cancelled) == 1
    assert (report.dropped, report.trained) == ({"cancelled": 1, "run_ended": 1}, 24)


async def test_an_engine_that_never_takes_a_version_does_not_keep_the_run_going(tmp_path):
    def on_step(step):
        write_policy(tmp_path / "p", PolicyVersion(step.step))

    def play(task, attempt):
        trace = chat(1, task_id=task, attempt=attempt)
        old = tuple(msgspec.structs.replace(call, policy_version=0) for call in trace.calls)
        return msgspec.structs.replace(trace, calls=old)

    settings = settings_for(tmp_path, steps=9, max_staleness=2, max_barren_groups=5)
    with pytest.raises(GroupsFailed, match=r"step 4 .*12 stale"):
        await orchestrate(
            settings, ScriptedServing(play), on_step=on_step, policies=PolicyWatch(tmp_path / "p", poll_s=0.005)
        )
