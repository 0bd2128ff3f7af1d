"""How many rollouts does one process carry? Single-turn rollouts through the whole path (task, session, relay over
HTTP, trace, reward, disk) against the scripted engine in a process of its own.

CPU is that of this process alone. The engine answers after a seeded latency, as a model would, so that all of the
concurrency is really in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from rollwright.engines import Engine, RelayConfig
from rollwright.engines.relay import RelayEngine
from rollwright.engines.scripted import ScriptedConfig, scripted_process
from rollwright.rollouts import Environment, Evaluation, Recorder
from rollwright.tasks import Task, Taskset, load_tasks, make_taskset
from rollwright.telemetry import LoopLagMonitor, peak_rss_bytes, rss_bytes, run, started
from rollwright.traces import RunDirectory

from .report import Target, report


async def _measure(rollouts: int, concurrency: int, latency_s: float) -> dict[str, float]:
    taskset = make_taskset("reverse-text", {})
    tasks = load_tasks(taskset)
    per_task = -(-rollouts // len(tasks))
    tasks = tasks[: -(-rollouts // per_task)]
    scripted = ScriptedConfig(
        policy="oracle",
        solver="rollwright.tasks.oracle:solver",
        solver_options={"taskset": "reverse-text"},
        latency_s=latency_s,
        latency_jitter_s=latency_s / 2,
        log_calls=0,
    )
    with tempfile.TemporaryDirectory() as directory:
        async with scripted_process(scripted) as server:
            relay = RelayConfig(base_url=server.base_url, max_connections=concurrency)
            async with RelayEngine(relay, model="scripted") as engine:
                return await _run(taskset, tasks, per_task, concurrency, engine, Path(directory) / "run")


async def _run(
    taskset: Taskset, tasks: list[Task], per_task: int, concurrency: int, engine: Engine, path: Path
) -> dict[str, float]:
    started()
    environment = Environment(taskset)
    with RunDirectory.create(path, {}) as directory:
        async with environment.serving(engine, "scripted") as serving, Recorder(directory) as recorder:
            warm = Evaluation(serving, tasks[:1], rollouts=1, concurrency=1, recorder=recorder)
            await warm.run()
            evaluation = Evaluation(
                serving, tasks, rollouts=per_task, concurrency=concurrency, recorder=recorder, done=directory.done
            )
            async with LoopLagMonitor() as lag:
                rss_at_10_percent = asyncio.create_task(_rss_at(evaluation, len(tasks) * per_task // 10))
                cpu, wall = time.process_time(), time.monotonic()
                await evaluation.run()
                cpu, wall = time.process_time() - cpu, time.monotonic() - wall
                seen = lag.snapshot()
            early = await rss_at_10_percent
    finished = evaluation.tally.finished
    assert finished == len(tasks) * per_task - 1, evaluation.tally.failures
    return {
        "cpu_ms_per_rollout": cpu / finished * 1e3,
        "rollouts_per_s": finished / wall,
        "lag_p99_ms": seen.p99_s * 1e3,
        "lag_max_ms": seen.max_s * 1e3,
        "peak_rss_mb": peak_rss_bytes() / 2**20,
        "rss_growth": rss_bytes() / early,
        "reward_mean": evaluation.tally.reward_so_far or 0.0,
    }


async def _rss_at(evaluation: Evaluation, finished: int) -> int:
    while evaluation.tally.finished < finished:
        await asyncio.sleep(0.05)
    return rss_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--latency-s", type=float, default=0.1, help="Mean time of an answer.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = run(_measure(options.rollouts, options.concurrency, options.latency_s))
    targets: dict[str, Target] = {
        "cpu_ms_per_rollout": ("<=", 2.0),
        "rollouts_per_s": (">=", 300.0),
        "lag_p99_ms": ("<=", 20.0),
    }
    report("rollouts", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
