"""Many steps with real payloads in one process, and what its loop, its memory and its collector did meanwhile.

What holds the loop is told by the CPU that one callback uses, garbage collections and all, whoever is in its stack: a
busy machine takes a CPU away from a callback and gives it none. What waits instead of computing is told by the stalls.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np

from loopguard import LoopGuard
from rollwright import telemetry
from rollwright.orchestrator import OrchestrateSettings, Orchestrator, Source, SourcePlan
from rollwright.orchestrator.policies import PolicyWatch
from rollwright.orchestrator.transports import BatchReceiver, FileSender
from rollwright.telemetry import LoopLagMonitor, MemoryTrimmer, rss_bytes, started
from rollwright.wire import CallRecord, Routing, TokenSegment, Trace
from rollwright.wire.codec import decode, encode

TURNS, TOKENS, LAYERS, TOP_K = 6, 3000, 8, 4


def payload() -> list[bytes]:
    """A trace as it comes over a wire: frames, of which the arrays are views."""
    rng = np.random.default_rng(0)
    each = TOKENS // TURNS
    calls = []
    for turn in range(TURNS):
        sampled = np.arange(each) >= each // 2
        rows = rng.integers(0, 64, (each, LAYERS, TOP_K), np.uint8)
        ids = rng.integers(0, 2**17, each, np.int32)
        logprobs = np.where(sampled, -0.5, 0.0).astype(np.float32)
        tokens = TokenSegment(turn - 1, ids, sampled, logprobs, Routing(turn * each, rows))
        calls.append(CallRecord(prompt=0, reply=1, tokens=tokens))
    return [bytes(frame) for frame in encode(Trace(task_id="", attempt=0, calls=tuple(calls)))]


class Runner:
    def __init__(self) -> None:
        self._frames = payload()
        self._version = 0

    async def run_group(self, task: str, n: int, *, first_attempt: int = 0) -> list[Trace]:
        await asyncio.sleep(0.002)
        traces = []
        for attempt in range(first_attempt, first_attempt + n):
            trace = decode([bytearray(frame) for frame in self._frames], Trace)
            calls = tuple(msgspec.structs.replace(call, policy_version=self._version) for call in trace.calls)
            traces.append(
                msgspec.structs.replace(trace, task_id=task, attempt=attempt, calls=calls, reward=float(attempt % 2))
            )
        return traces

    def cancel_rollout(self, task: str, attempt: int) -> bool:
        return False

    async def tell_policy(self, version: int) -> None:
        self._version = version


def train(directory: Path, steps: int) -> None:
    receiver = BatchReceiver(directory, 1)
    for step in range(1, steps + 1):
        batch = receiver.receive(timeout_s=120)
        assert batch.step == step
        receiver.ack(step)
        receiver.publish(step)


class Meter(LoopGuard):
    """Judges every callback of the loop, and excuses nothing: neither collections nor first imports."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(limit_s)
        self.callbacks = 0
        self.longest_s = 0.0

    def run_callback(self, name, callback, *args):
        began = time.thread_time()
        try:
            return super().run_callback(name, callback, *args)
        finally:
            self.callbacks += 1
            self.longest_s = max(self.longest_s, time.thread_time() - began)

    def excused(self, work, *args, **kwargs):
        return work(*args, **kwargs)

    def _on_gc(self, phase, info):
        pass


class Collections:
    """What the collector did: how often somebody asked for a full collection and, in the thread of the loop, how often
    it came to one by itself, and the CPU of the longest of any kind."""

    def __init__(self) -> None:
        self.asked_for = 0
        self.full = 0
        self.longest_s = 0.0
        self._loop = threading.get_ident()
        self._began = 0.0
        gc.callbacks.append(self._notice)
        self._collect, gc.collect = gc.collect, self._asked

    def _asked(self, generation: int = 2) -> int:
        self.asked_for += 1
        return self._collect(generation)

    def _notice(self, phase: str, info: dict[str, int]) -> None:
        if threading.get_ident() != self._loop:
            return
        if phase == "start":
            self._began = time.thread_time()
            self.full += info["generation"] == 2
        else:
            self.longest_s = max(self.longest_s, time.thread_time() - self._began)


async def main(directory: Path, steps: int, meter: Meter) -> None:
    rss: list[int] = []
    collections = Collections()
    tasks = [f"task-{n}" for n in range(50)]
    settings = OrchestrateSettings(output=str(directory), steps=steps, batch_size=16)
    source = Source(SourcePlan(name="train", tasks=len(tasks), group_size=4), Runner(), tasks)
    sender = FileSender(directory, sync=False)
    trainer = threading.Thread(target=train, args=(directory, steps), daemon=True)
    trainer.start()
    async with MemoryTrimmer(), LoopLagMonitor(stall_over_s=0.05) as monitor:
        started()
        orchestrator = Orchestrator(
            settings,
            [source],
            sender=sender,
            policies=PolicyWatch(directory, poll_s=0.005),
            on_step=lambda step: rss.append(rss_bytes()),
        )
        report = await orchestrator.run()
        await sender.drained(30)
        await sender.close()
        lag, stalls, counts = monitor.snapshot(), monitor.stalls, monitor.stall_counts
    trainer.join(30)
    blocked = [msgspec.to_builtins(stall) for stall in stalls if stall.kind == "loop_blocked"]
    print(
        json.dumps(
            {
                "steps": report.steps,
                "trained": report.trained,
                "rss_early_mb": float(np.median(rss[steps // 4 : steps // 2])) / 2**20,
                "rss_late_mb": float(np.median(rss[-steps // 4 :])) / 2**20,
                "lag_p99_ms": lag.p99_s * 1000,
                "blocked": blocked,
                "stalls": counts,
                "held": meter.offences,
                "longest_callback_ms": meter.longest_s * 1000,
                "callbacks": meter.callbacks,
                "collections_asked_for": collections.asked_for,
                "full_collections": collections.full,
                "longest_collection_ms": collections.longest_s * 1000,
                "left": sorted(path.name for path in directory.glob("batch-*")),
            }
        )
    )


if __name__ == "__main__":
    meter = Meter(limit_s=0.05)
    meter.install()
    telemetry.run(main(Path(sys.argv[1]), int(sys.argv[2]), meter))
