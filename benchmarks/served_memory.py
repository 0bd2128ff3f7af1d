"""Is memory flat over a long run? Rollouts of a real environment through a real server: in every turn the model asks to
look, and a tool shows it another picture. The model is a function in the worker, so that what is measured is ours.

    python -m benchmarks.served_memory --rollouts 10000 --turns 20 --workers 2 --json

`slope_mb_per_1000` is how much more memory a worker has after a thousand more rollouts: the steepest of the lines
through each worker's memory after the first 500 rollouts. `broker_slope` and `client_slope` are those of the others,
`peak_mb` is the most that any worker had, of the `budget_mb` past which it would be replaced, and `replaced` how many
were.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from rollwright.engines import FunctionEngine
from rollwright.rollouts import Environment
from rollwright.serve import BrokerSettings, EnvClient, SlotSettings, serving
from rollwright.serve.environments import EnvironmentHost
from rollwright.serve.hosting import Host
from rollwright.tasks import Picture, Task, Taskset, reward, tool
from rollwright.telemetry import MemoryTrimmer, rss_bytes, run
from rollwright.wire import Message, ModelCall, Text, ToolCall, assistant

from .report import Target, report

WARM_ROLLOUTS = 500
TASKS = 64


class Plan(msgspec.Struct, frozen=True):
    turns: int
    image_kb: int


class Look(Task, frozen=True):
    """Look around for some turns."""

    image_kb: int = 16

    @tool
    def look(self, step: int) -> Picture:
        """Show what is there."""
        # Fresh bytes all over would measure the source of randomness.
        return Picture(os.urandom(64) + bytes(self.image_kb * 1024 - 64))

    @reward
    def seen(self, trace: Any) -> float:
        return float(trace.turns)


class Looking(Taskset, frozen=True):
    image_kb: int

    def tasks(self) -> list[Task]:
        return [Look(id=f"look-{n}", prompt="Look.", image_kb=self.image_kb) for n in range(TASKS)]


def looker(turns: int) -> FunctionEngine:
    def answer(call: ModelCall) -> Message:
        step = sum(message.role == "assistant" for message in call.messages) + 1
        if step == turns:
            return assistant("Enough.")
        return Message("assistant", (Text("Again. " * 50), ToolCall(str(step), "look", f'{{"step": {step}}}')))

    return FunctionEngine(answer)


@asynccontextmanager
async def host(options: str) -> AsyncIterator[Host]:
    plan = msgspec.json.decode(options, type=Plan)
    taskset, engine = Looking(plan.image_kb), looker(plan.turns)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(MemoryTrimmer())
        serving = await stack.enter_async_context(Environment(taskset).serving(engine, "looker"))
        tasks = {task.id: task for task in taskset.tasks()}
        yield EnvironmentHost(tasks, engine, serving, lambda: None, prove=False)


class Watch:
    """Memory of each process, with how many rollouts were done by then."""

    def __init__(self) -> None:
        self.seen: dict[str, list[tuple[int, float]]] = {}
        self.done = 0
        self.peak_mb = 0.0

    async def look(self, client: EnvClient) -> None:
        status = await client.ask("status", timeout_s=30.0)
        self._note("client", rss_bytes() / 2**20)
        self._note("broker", status["broker"]["rss_mb"])
        for worker in status["workers"]:
            if worker["vitals"]:
                self._note(f"worker {worker['slot']}.{worker['life']}", worker["vitals"]["rss_mb"])
                self.peak_mb = max(self.peak_mb, worker["vitals"]["rss_mb"])

    def _note(self, who: str, mb: float) -> None:
        self.seen.setdefault(who, []).append((self.done, mb))

    def slope(self, who: str) -> float:
        """MB per thousand rollouts, after the first ones."""
        settled = [(done, mb) for done, mb in self.seen[who] if done >= WARM_ROLLOUTS]
        if len(settled) < 3:
            return 0.0
        return statistics.linear_regression(*zip(*settled, strict=True)).slope * 1000

    def workers(self) -> list[str]:
        return [who for who in self.seen if who.startswith("worker")]


async def _load(client: EnvClient, watch: Watch, options: argparse.Namespace, tasks: list[Task]) -> None:
    numbers = iter(range(options.rollouts))

    async def seat() -> None:
        for number in numbers:
            trace = await client.run(tasks[number % TASKS], number // TASKS)
            assert trace.reward == options.turns, trace.failure
            watch.done += 1

    async def watching() -> None:
        while watch.done < options.rollouts:
            await watch.look(client)
            await asyncio.sleep(options.every_s)

    await asyncio.gather(watching(), *(seat() for _ in range(options.concurrency)))
    await watch.look(client)


async def measure(options: argparse.Namespace) -> dict[str, float]:
    plan, watch = Plan(options.turns, options.image_kb), Watch()
    settings = BrokerSettings(
        workers=options.workers,
        capacity=options.concurrency,
        host="benchmarks.served_memory:host",
        options=msgspec.json.encode(plan).decode(),
        slots=SlotSettings(memory_mb=options.budget_mb),
    )
    began = time.monotonic()
    async with serving(settings) as server, EnvClient(server.address) as client:
        await _load(client, watch, options, Looking(plan.image_kb).tasks())
        status = await client.ask("status")
    workers = watch.workers()
    return {
        "slope_mb_per_1000": max(watch.slope(who) for who in workers),
        "broker_slope": watch.slope("broker"),
        "client_slope": watch.slope("client"),
        "peak_mb": watch.peak_mb,
        "budget_mb": float(options.budget_mb),
        "replaced": float(len(workers) - options.workers),
        "rollouts": float(watch.done),
        "late": float(status["counts"].get("late", 0)),
        "wall_s": time.monotonic() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--image-kb", type=int, default=16)
    parser.add_argument("--budget-mb", type=int, default=256, help="Of each worker.")
    parser.add_argument("--every-s", type=float, default=0.5, help="Between two looks at the memory.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    targets: dict[str, Target] = {
        "slope_mb_per_1000": ("<=", 0.5),
        "broker_slope": ("<=", 0.5),
        "client_slope": ("<=", 0.5),
        "peak_mb": ("<=", float(options.budget_mb)),
        "replaced": ("==", 0.0),
    }
    report("served_memory", run(measure(options)), targets, as_json=options.json)


if __name__ == "__main__":
    main()
