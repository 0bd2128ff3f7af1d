"""What a run tells: metrics for every sink, the archive of rollouts, and the numbers of a step."""

from __future__ import annotations

import json

from orchestrator.call_trees import FAILURE, chat
from orchestrator.test_orchestrate import TASKS, ScriptedServing, orchestrator, settings_for
from rollwright.orchestrator import StepReport
from rollwright.orchestrator.archive import archive
from rollwright.orchestrator.groups import Ticket
from rollwright.orchestrator.observing import publish_run, publish_step
from rollwright.telemetry import LoopLagMonitor, Metrics
from rollwright.traces import read_traces
from rollwright.wire import Stop


def told(metrics: Metrics) -> dict[str, float]:
    points = metrics.snapshot().points
    return {f"{p.name}{{{','.join('='.join(label) for label in p.labels)}}}": p.value for p in points}


async def test_every_sink_is_told_of_the_run_and_of_its_loop(tmp_path):
    metrics, steps = Metrics(), []
    async with LoopLagMonitor() as monitor:
        async with orchestrator(tmp_path, ScriptedServing(), monitor=monitor, on_step=steps.append) as run:
            publish_run(metrics, run, monitor)
            await run.run()
        for step in steps:
            publish_step(metrics, step)
        seen = told(metrics)
    assert (seen["step{}"], seen["rollouts_trained{}"], seen["step_shipped{}"]) == (3, 24, 3)
    assert (seen["buffered_bytes{}"], seen["rollouts_in_flight{}"], seen["step_reward_mean{}"]) == (0, 0, 0.5)
    assert (seen["landing_bytes{}"], seen["step_landing_bytes{}"]) == (0, 0)
    for over in ("interval", "step"):
        for stat in ("p50", "p90", "p99", "max", "blocked"):
            assert seen[f"event_loop_lag{{over={over},stat={stat}}}"] >= 0
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])["metrics"]
    assert {f"event_loop_lag/{stat}" for stat in ("p50", "p90", "p99", "max", "blocked")} <= set(line)


async def test_a_step_counts_what_happened_since_the_one_before(tmp_path):
    def play(task, attempt):
        trace = chat(1, task_id=task, attempt=attempt, reward=float(attempt % 2))
        fails = task == "task-1" and attempt == 0
        return trace if not fails else type(trace)(task, attempt, stop=Stop.FAILED, failure=FAILURE)

    steps: list[StepReport] = []
    async with orchestrator(tmp_path, ScriptedServing(play), on_step=steps.append) as run:
        report = await run.run()
    assert sum(step.trained for step in steps) == report.trained == 24
    assert sum(sum(step.failed.values()) for step in steps) == 1
    assert sum(step.samples for step in steps) == report.samples == 24
    assert all(step.staleness_max == 0 and step.batch_bytes > 0 for step in steps)


async def test_rollouts_are_kept_once_whatever_happened_in_between(tmp_path):
    ticket = Ticket(0, "sums/a", 0, 0, 2)
    traces = [chat(1, task_id="t", attempt=n, reward=1.0) for n in range(2)]
    for _ in range(2):
        async with archive(tmp_path / "rollouts") as kept:
            await kept.keep(ticket, traces[:1])
            await kept.keep(ticket, traces)
    found = list(read_traces(tmp_path / "rollouts" / "sums-a"))
    assert [trace.attempt for trace in found] == [0, 1]
    assert found[0].calls[0].tokens is not None


async def test_a_run_keeps_what_it_is_asked_to(tmp_path):
    settings = settings_for(tmp_path / "run")
    async with (
        archive(tmp_path / "rollouts") as kept,
        orchestrator(tmp_path, ScriptedServing(), settings=settings, on_traces=kept.keep) as run,
    ):
        await run.run()
    found = {(trace.task_id, trace.attempt) for trace in read_traces(tmp_path / "rollouts" / "train")}
    assert len(found) == 24
    assert {task for task, _ in found} == set(TASKS)
