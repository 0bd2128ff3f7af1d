"""What does it cost to have a rollout run elsewhere? A client, one broker, one worker that does nothing.

`cpu_ms_per_rollout` is the CPU of all three processes per rollout that does nothing; `noop_per_s` is how many go
through; `reply_gb_per_s` is how fast traces with 24 MB of routed experts come back. `lag_p99_ms` is the worst of the
three loops over the whole run. The worker's host returns a prepared trace, so that what is measured is the carrying.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from rollwright.serve import BrokerSettings, EnvClient, serving
from rollwright.serve.hosting import Each, Host
from rollwright.serve.protocol import Ending, Job
from rollwright.tasks import Task
from rollwright.telemetry import LoopLagMonitor, run
from rollwright.wire import CallRecord, Node, Routing, TokenSegment, Trace, assistant, user

from .report import Target, report

TARGETS: dict[str, Target] = {
    "cpu_ms_per_rollout": ("<=", 0.5),
    "noop_per_s": (">=", 5000.0),
    "reply_gb_per_s": (">=", 1.0),
    "lag_p99_ms": ("<", 20.0),
}
LAYERS, TOP_K = 48, 8


class Nothing(Task, frozen=True):
    """Nothing to do."""


class EmptyHost:
    """Answers every rollout with a trace that was made before."""

    def __init__(self, tokens: int) -> None:
        said = (Node(-1, user("Go.")), Node(0, assistant("Gone."), 0))
        self._small = Trace("nothing", 0, nodes=said, calls=(CallRecord(0, 1),))
        ids = np.arange(tokens, dtype=np.int32)
        rows = np.zeros((tokens, LAYERS, TOP_K), np.uint8)
        segment = TokenSegment(-1, ids, np.ones(tokens, np.bool_), np.zeros(tokens, np.float32), Routing(0, rows))
        self._large = Trace("large", 0, nodes=said, calls=(CallRecord(0, 1, tokens=segment),))

    async def probe(self) -> None:
        """There is nothing that could be wrong."""

    async def run(self, job: Job, positions: Sequence[int], each: Each) -> Ending:
        for position in positions:
            each(position, self._large if job.task_id == "large" else self._small)
        return Ending()

    def cancel(self, job: Job, position: int) -> bool:
        return False

    def tell_policy(self, version: int) -> None:
        pass

    def vitals(self) -> dict[str, float]:
        return {}


@asynccontextmanager
async def host(options: str) -> AsyncIterator[Host]:
    yield EmptyHost(json.loads(options)["tokens"])


async def _burst(client: EnvClient, task: Task, count: int, width: int) -> None:
    numbers = iter(range(count))

    async def seat() -> None:
        for number in numbers:
            await client.run(task, number)

    await asyncio.gather(*(seat() for _ in range(width)))


async def _cpu_s(client: EnvClient) -> tuple[float, dict[str, Any]]:
    """CPU of all three so far. Beats come five times a second, so the worker's is waited for."""
    await asyncio.sleep(0.5)
    status = await client.ask("status")
    others = [status["broker"], *(worker["vitals"] for worker in status["workers"])]
    return time.process_time() + sum(vitals["cpu_s"] for vitals in others), status


async def measure(options: argparse.Namespace) -> dict[str, float]:
    settings = BrokerSettings(
        capacity=options.width, host="benchmarks.serving:host", options=json.dumps({"tokens": options.tokens})
    )
    async with LoopLagMonitor() as lag, serving(settings) as server, EnvClient(server.address) as client:
        await _burst(client, Nothing(id="nothing"), options.rollouts // 10, options.width)
        rates, costs = [], []
        for _ in range(options.repeats):
            before, _ = await _cpu_s(client)
            began = time.perf_counter()
            await _burst(client, Nothing(id="nothing"), options.rollouts, options.width)
            rates.append(options.rollouts / (time.perf_counter() - began))
            after, status = await _cpu_s(client)
            costs.append((after - before) * 1000 / options.rollouts)
        large = [await _large_rate(client, options) for _ in range(options.repeats)]
        _, status = await _cpu_s(client)
        lags = [status["broker"]["lag_p99_ms"], *(worker["vitals"]["lag_p99_ms"] for worker in status["workers"])]
        return {
            "cpu_ms_per_rollout": statistics.median(costs),
            "noop_per_s": statistics.median(rates),
            "reply_gb_per_s": statistics.median(large),
            "lag_p99_ms": max(lag.snapshot().p99_s * 1000, *lags),
            "client_lag_p99_ms": lag.snapshot().p99_s * 1000,
            "broker_lag_p99_ms": lags[0],
            "worker_lag_p99_ms": lags[1],
        }


async def _large_rate(client: EnvClient, options: argparse.Namespace) -> float:
    one = await client.run(Nothing(id="large"))
    tokens = one.calls[0].tokens
    assert tokens is not None
    assert tokens.routing is not None
    size = tokens.routing.rows.nbytes
    began = time.perf_counter()
    await _burst(client, Nothing(id="large"), options.large, 4)
    return int(options.large) * size / 1e9 / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=20_000, help="Rollouts that do nothing, per repeat.")
    parser.add_argument("--width", type=int, default=256, help="How many are asked for at once.")
    parser.add_argument(
        "--tokens", type=int, default=62_500, help="Length of a large trace; 384 bytes of routing each."
    )
    parser.add_argument("--large", type=int, default=40, help="Large traces, per repeat.")
    parser.add_argument("--repeats", type=int, default=3, help="The median is reported.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report("serving", run(measure(options)), TARGETS, as_json=options.json)


if __name__ == "__main__":
    main()
