"""How many rollouts does one process carry? Single-turn rollouts through the whole path (task, session, relay over
HTTP, trace, reward, disk) against the scripted engine in a process of its own.

CPU is that of this process alone. The engine answers after a seeded latency, as a model would, so that all of the
concurrency is really in flight.

    python -m benchmarks.rollouts --harness bash --rollouts 200 --concurrency 32 --json

With a harness that is a program in a box, CPU is that of all processes but the engine: this one, the box's programs,
and what starts them. Each rollout has a box of its own, and its program makes one call.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rollwright.engines import Engine, RelayConfig
from rollwright.engines.relay import RelayEngine
from rollwright.engines.scripted import ScriptedConfig, scripted_process
from rollwright.harnesses import harness_config, make_harness
from rollwright.rollouts import Environment, Evaluation, Recorder
from rollwright.runtimes import runtime_config
from rollwright.tasks import Task, load_tasks, make_taskset
from rollwright.telemetry import LoopLagMonitor, peak_rss_bytes, rss_bytes, run, started
from rollwright.traces import RunDirectory

from .report import Target, report


async def _measure(rollouts: int, concurrency: int, latency_s: float, harness: str, runtime: str) -> dict[str, float]:
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
                environment = Environment(
                    taskset, harness=make_harness(harness_config(harness)), runtime=runtime_config(runtime, {})
                )
                books = Books(server.pid)
                figures = await _run(environment, tasks, per_task, concurrency, engine, Path(directory) / "run", books)
    return figures if harness == "chat" else _of_programs(figures)


async def _run(
    environment: Environment,
    tasks: list[Task],
    per_task: int,
    concurrency: int,
    engine: Engine,
    path: Path,
    books: Books,
) -> dict[str, float]:
    started()
    with RunDirectory.create(path, {}) as directory:
        async with environment.serving(engine, "scripted") as serving, Recorder(directory) as recorder:
            warm = Evaluation(serving, tasks[:1], rollouts=1, concurrency=1, recorder=recorder)
            await warm.run()
            evaluation = Evaluation(
                serving, tasks, rollouts=per_task, concurrency=concurrency, recorder=recorder, done=directory.done
            )
            async with LoopLagMonitor() as lag:
                rss_at_10_percent = asyncio.create_task(_rss_at(evaluation, len(tasks) * per_task // 10))
                below = await asyncio.to_thread(books.below)
                cpu, wall = time.process_time(), time.monotonic()
                await evaluation.run()
                cpu, wall = time.process_time() - cpu, time.monotonic() - wall
                below = await asyncio.to_thread(books.below) - below
                seen = lag.snapshot()
            early = await rss_at_10_percent
    finished = evaluation.tally.finished
    assert finished == len(tasks) * per_task - 1, evaluation.tally.failures
    return {
        "cpu_ms_per_rollout": cpu / finished * 1e3,
        "rollouts_per_s": finished / wall,
        "cpu_ms_below": below / finished * 1e3,
        "lag_p99_ms": seen.p99_s * 1e3,
        "lag_max_ms": seen.max_s * 1e3,
        "peak_rss_mb": peak_rss_bytes() / 2**20,
        "rss_growth": rss_bytes() / early,
        "reward_mean": evaluation.tally.reward_so_far or 0.0,
    }


def _of_programs(figures: dict[str, float]) -> dict[str, float]:
    own, below = figures["cpu_ms_per_rollout"], figures["cpu_ms_below"]
    renamed = {
        "cpu_ms_per_program_rollout": own + below,
        "program_rollouts_per_s": figures["rollouts_per_s"],
        "cpu_ms_here": own,
        "cpu_ms_below": below,
    }
    return renamed | {name: figures[name] for name in ("lag_p99_ms", "lag_max_ms", "peak_rss_mb", "reward_mean")}


class Books:
    """CPU seconds of everything below this process, ended or not, but for one child with all of its own."""

    def __init__(self, without: int) -> None:
        self._without = without

    def below(self) -> float:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return ended.ru_utime + ended.ru_stime + sum(self._live(os.getpid()))

    def _live(self, pid: int) -> Iterator[float]:
        """Each live process below `pid`, with what it has waited for."""
        for child in _children(pid):
            if child == self._without:
                continue
            yield _used(child)
            yield from self._live(child)


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return []


def _used(pid: int) -> float:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")


async def _rss_at(evaluation: Evaluation, finished: int) -> int:
    while evaluation.tally.finished < finished:
        await asyncio.sleep(0.05)
    return rss_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--latency-s", type=float, default=0.1, help="Mean time of an answer.")
    parser.add_argument("--harness", default="chat", help="chat, or a program: bash, mini-swe-agent, ...")
    parser.add_argument("--runtime", default="subprocess", help="The box of a program.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = run(_measure(options.rollouts, options.concurrency, options.latency_s, options.harness, options.runtime))
    if options.harness != "chat":
        bounds: dict[str, Target] = {"cpu_ms_per_program_rollout": ("<=", 45.0)}
        return report("program rollouts", figures, bounds, as_json=options.json)
    figures.pop("cpu_ms_below")
    targets: dict[str, Target] = {
        "cpu_ms_per_rollout": ("<=", 2.0),
        "rollouts_per_s": (">=", 300.0),
        "lag_p99_ms": ("<=", 20.0),
    }
    return report("rollouts", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
