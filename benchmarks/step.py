"""Does a step hold up the loop? The orchestrator itself, with router replay: rollouts arrive as frames from another
process, land, become a batch, and are shipped to a trainer in a third process, which reads all of it and acks.

    python -m benchmarks.step --rollouts 64 --tokens 60000 --layers 48 --topk 8 --json

`lag_p99_ms`, `lag_max_ms`    of the orchestrator's loop, from the first wish to the last ack, all steps
`machine_lag_...`             of a loop with nothing to do, in a process of its own, at the same time
`copies_per_byte`             bytes that this process moves to turn what arrived into samples, per routing byte: what
                              it writes to the files of groups, by the kernel's own count. None is moved in user space.
`ship_writes_per_byte`        bytes that it writes to ship: the kernel moves them from the groups' pages to the batch's
`bytes_per_token`             of the same batch without routing
`rss_over_payload`            most resident memory of this process, with all it maps, over the payload of one step
`anon_over_payload`           the same without what is mapped from files and so can be dropped
`rss_growth`                  resident memory after the last step over that after a quarter of them
`collection_max_ms`           CPU of the longest garbage collection
`over_reference`              CPU per rollout, from frames that have come to a batch that is shipped: that of a plain
                              implementation over ours. It grows arrays by concatenation and encodes with msgspec in a
                              thread (benchmarks/stepping/reference.py), for `--reference-rollouts` of them.
`reference_lag_max_ms`        what that does to its loop, which grows with the number of rollouts
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rollwright.orchestrator import OrchestrateSettings
from rollwright.orchestrator.batches import Batch, encode_batch
from rollwright.orchestrator.concurrency import ConcurrencySettings
from rollwright.orchestrator.contracts import Shipped, Source, TrainingBatchSender
from rollwright.orchestrator.drafts import samples_of
from rollwright.orchestrator.loop import Orchestrator
from rollwright.orchestrator.sources import SourcePlan
from rollwright.orchestrator.transports import FileSender
from rollwright.orchestrator.transports.zmq import ZmqSender
from rollwright.telemetry import LagSnapshot, LoopLagMonitor, peak_rss_bytes, rss_bytes, run

from .report import Target, report
from .stepping import reference
from .stepping.neighbours import TICK_S, FedRunner, IdleLoop, Trainer, fed_runner
from .stepping.payload import Size, calls_of, trace_of


class Written:
    """Bytes that this process gave to write calls. Sockets are not among them."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> int:
        fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(fields["wchar"])

    def __call__(self) -> int:
        return self._now() - self._before


class AnonymousPeak:
    """Memory that no file stands behind, looked at 50 times a second."""

    def __init__(self) -> None:
        self.bytes = 0
        self._stop = threading.Event()

    def _look(self) -> None:
        while not self._stop.wait(0.02):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    self.bytes = max(self.bytes, int(line.split()[1]) * 1024)

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self._look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()


@contextmanager
def collections_ms() -> Iterator[list[float]]:
    """The CPU of each garbage collection, whichever thread it met."""
    spent: list[float] = []
    began = 0.0

    def notice(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.thread_time()
        else:
            spent.append((time.thread_time() - began) * 1e3)

    gc.callbacks.append(notice)
    try:
        yield spent
    finally:
        gc.callbacks.remove(notice)


class CountingSender:
    """Counts what a sender ships."""

    def __init__(self, sender: TrainingBatchSender) -> None:
        self._sender = sender
        self.bytes = 0

    async def send(self, batch: Batch) -> Shipped:
        shipped = await self._sender.send(batch)
        self.bytes += shipped.bytes
        return shipped

    async def prune(self, step: int) -> None:
        await self._sender.prune(step)


class Measured(NamedTuple):
    """What a run of the orchestrator took."""

    lag: LagSnapshot
    machine: LagSnapshot
    wrote: int
    anonymous_peak: int
    collections_ms: list[float]
    cpu_s: float
    wall_s: float


async def _measured(run: Callable[[], Awaitable[None]]) -> Measured:
    idle = await asyncio.to_thread(IdleLoop)
    peak, written, cpu, wall = AnonymousPeak(), Written(), time.process_time(), time.monotonic()
    async with LoopLagMonitor(TICK_S, stall_over_s=0.03) as lag:
        with peak.watching(), collections_ms() as collections:
            await run()
        for stall in lag.stalls:
            print(f"stall of {stall.duration_s * 1e3:.0f} ms, {stall.kind}:\n{stall.stack}", file=sys.stderr)
        figures, machine = lag.snapshot(), await asyncio.to_thread(idle.snapshot)
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    return Measured(figures, machine, written(), peak.bytes, collections, cpu, wall)


def _settings(options: argparse.Namespace, size: Size, output: Path) -> OrchestrateSettings:
    return OrchestrateSettings(
        output=str(output),
        steps=options.steps,
        batch_size=options.rollouts,
        max_buffered_mb=max(3 * options.rollouts * size.payload_bytes // 2**20, 1),
        concurrency=ConcurrencySettings(initial=options.at_once, least=1, most=options.at_once, adaptive=False),
    )


async def _ours(options: argparse.Namespace, size: Size, directory: Path) -> dict[str, float]:
    output = directory / "run"
    sender = FileSender(output) if options.transport == "files" else ZmqSender(output, "tcp://127.0.0.1:*")
    source, key = (str(output), "") if isinstance(sender, FileSender) else (sender.address, sender.key)
    counted = CountingSender(sender)
    resident: list[int] = []
    trainer = await asyncio.to_thread(Trainer, source, key, options.steps)

    async def run() -> None:
        result = await orchestrator.run()
        seen = await asyncio.to_thread(trainer.seen)
        assert result.trained == rollouts, result
        assert sum(step["tokens"] for step in seen) == rollouts * size.tokens
        assert not size.layers or sum(step["routed"] for step in seen) == rollouts, "a routing row did not arrive"

    rollouts = options.rollouts * options.steps
    try:
        async with fed_runner(f"ipc://{directory}/feed", size) as runner:
            tasks = [f"task {index}" for index in range(options.rollouts)]
            plan = SourcePlan(name="fed", tasks=len(tasks), group_size=options.group_size)
            orchestrator = Orchestrator(
                _settings(options, size, output),
                [Source(plan, runner, tasks)],
                sender=counted,
                on_step=lambda _: resident.append(rss_bytes()),
            )
            await runner.run_group("warm-up", 1)
            arrival = await _arrival_cpu_s(runner)
            took = await _measured(run)
    finally:
        trainer.kill()
        await sender.close()
    figures = _figures(took, rollouts, size, options.steps, counted.bytes)
    figures["rss_growth"] = resident[-1] / resident[len(resident) // 4]
    figures["cpu_ms_per_rollout"] = (took.cpu_s / rollouts - arrival) * 1e3
    return figures | {"arrival_cpu_ms_per_rollout": arrival * 1e3}


def _figures(took: Measured, rollouts: int, size: Size, steps: int, shipped: int) -> dict[str, float]:
    payload = rollouts * size.payload_bytes
    moved = rollouts * size.routing_bytes or payload
    return {
        "lag_p99_ms": took.lag.p99_s * 1e3,
        "lag_max_ms": took.lag.max_s * 1e3,
        "machine_lag_p99_ms": took.machine.p99_s * 1e3,
        "machine_lag_max_ms": took.machine.max_s * 1e3,
        "copies_per_byte": (took.wrote - shipped) / moved,
        "ship_writes_per_byte": shipped / moved,
        "rss_over_payload": peak_rss_bytes() / (payload / steps),
        "anon_over_payload": took.anonymous_peak / (payload / steps),
        "collection_max_ms": max(took.collections_ms, default=0.0),
        "gb_per_s": moved / took.wall_s / 1e9,
        "wall_s": took.wall_s,
    }


async def _arrival_cpu_s(runner: FedRunner, rollouts: int = 8) -> float:
    """Of one rollout: its frames come off the socket, are read, and are let go. The reference has no socket to read."""
    cpu = time.process_time()
    for attempt in range(rollouts):
        await runner.run_group("arrival", 1, first_attempt=attempt)
    return (time.process_time() - cpu) / rollouts


async def _plain(options: argparse.Namespace, size: Size, directory: Path) -> dict[str, float]:
    rollouts = min(options.reference_rollouts, options.rollouts)
    calls = calls_of(size)
    traces = [trace_of(calls, "task", attempt) for attempt in range(rollouts)]
    async with LoopLagMonitor(TICK_S) as lag:
        raw_bytes, cpu = await reference.step(traces, directory / "plain")
        figures = lag.snapshot()
    routing = rollouts * (size.routing_bytes or size.payload_bytes)
    return {
        "reference_lag_max_ms": figures.max_s * 1e3,
        "reference_copies_per_byte": reference.copied_bytes / routing,
        "reference_cpu_ms_per_rollout": cpu / rollouts * 1e3,
        "reference_bytes_per_token": raw_bytes / rollouts / size.tokens,
    }


def _bytes_per_token(size: Size, rollouts: int) -> float:
    """Of the wire format, for the same rollouts without routing."""
    calls = calls_of(size._replace(layers=0))
    samples = [sample for attempt in range(min(rollouts, 8)) for sample in samples_of(trace_of(calls, "t", attempt))]
    batch = Batch.of(1, samples)
    return sum(map(len, encode_batch(batch))) / batch.tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=64, help="Per step.")
    parser.add_argument("--tokens", type=int, default=60_000, help="Per rollout.")
    parser.add_argument("--turns", type=int, default=45)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--topk", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=16, help="Rollouts that are on their way back at the same time.")
    parser.add_argument("--transport", choices=["files", "zmq"], default="files")
    parser.add_argument("--reference-rollouts", type=int, default=4)
    parser.add_argument("--directory", default=None, help="Where the files go; a disk with room for three steps.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    size = Size(options.tokens, options.turns, options.layers, options.topk)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        figures = run(_ours(options, size, Path(directory)))
        figures |= run(_plain(options, size, Path(directory)))
    figures["bytes_per_token"] = _bytes_per_token(size, options.rollouts)
    figures["over_reference"] = figures["reference_cpu_ms_per_rollout"] / figures["cpu_ms_per_rollout"]
    targets: dict[str, Target] = {
        "lag_p99_ms": ("<", 20.0),
        "lag_max_ms": ("<", 100.0),
        "copies_per_byte": ("<=", 1.2),
        "bytes_per_token": ("<=", 13.0),
        "rss_over_payload": ("<=", 1.25),
    }
    report("step", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
