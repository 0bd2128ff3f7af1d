"""A worker whose programs run elsewhere: for measuring what the interceptor costs its own process and no other.

`python -m benchmarks.doors.worker '{...}'` runs real rollouts whose harness hands its door to whoever started the
process and waits to be told that the program is done. Lines of JSON go both ways: a door for each rollout that begins,
a number for each that is over, and the worker's own figures for the word "figures"."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any

import msgspec

from rollwright.engines import Engine, RelayConfig
from rollwright.engines.function import FunctionEngine
from rollwright.engines.relay import RelayEngine
from rollwright.harnesses import Limits, Session, Surroundings
from rollwright.rollouts import Environment, Serving
from rollwright.tasks import Task, load_tasks, make_taskset
from rollwright.telemetry import LoopLagMonitor, MemoryTrimmer, peak_rss_bytes, rss_bytes, run, started
from rollwright.wire import Finish, Message, ModelCall, ModelReply, Stop, Text, ToolCall, Usage

_STALL_S = 0.05


class Door(msgspec.Struct):
    """A rollout that waits for its program."""

    number: int
    url: str
    key: str


class Figures(msgspec.Struct):
    """What the worker says of itself. CPU and lag are those since it was asked last."""

    cpu_s: float
    lag_p99_ms: float
    lag_max_ms: float
    rss_mb: float
    peak_mb: float
    rss_after_each_mb: list[float]
    """Resident memory as each rollout ended."""
    stalls: list[str] = []
    """How long the loop was away for over 50 ms, why, and where it was."""


class Setup(msgspec.Struct):
    engine_url: str = ""
    """A relay to this address; empty for an engine that is a function of the worker."""
    rollouts: int = 1
    concurrent: int = 1


class Program:
    """A harness whose program is run by somebody else."""

    needs_runtime = False
    needs_door = True

    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Event] = {}
        self._numbers = count()

    async def run(self, session: Session, around: Surroundings) -> Stop:
        assert around.door is not None
        number = next(self._numbers)
        done = self.waiting[number] = asyncio.Event()
        _tell({"number": number, "url": around.door.url, "key": around.door.key})
        await done.wait()
        return Stop.FINISHED


def _tell(line: Any) -> None:
    print(json.dumps(line), flush=True)


def _function() -> Engine:
    numbers = count()

    def answer(call: ModelCall) -> ModelReply:
        number = next(numbers)
        called = ToolCall(f"call_{number}", "look", '{"at": "the page"}')
        return ModelReply(Message("assistant", (Text(f"Step {number}."), called)), Finish.TOOL_CALLS, Usage(100, 20))

    return FunctionEngine(answer)


class Worker:
    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._program = Program()
        self._after_each: list[float] = []
        self._cpu_s = time.process_time()
        self._stalls = 0

    async def serve(self) -> None:
        limits = Limits(max_turns=None, timeout_s=3600.0)
        environment = Environment(make_taskset("reverse-text", {}), harness=self._program, limits=limits)
        async with AsyncExitStack() as stack:
            engine = _function()
            if self._setup.engine_url:
                relay = RelayConfig(base_url=self._setup.engine_url, max_connections=1024)
                engine = await stack.enter_async_context(RelayEngine(relay, model="m"))
            await stack.enter_async_context(MemoryTrimmer())
            lag = await stack.enter_async_context(LoopLagMonitor(stall_over_s=_STALL_S))
            serving = await stack.enter_async_context(environment.serving(engine, "m"))
            started()
            listening = asyncio.create_task(self._listen(lag))
            tasks = iter(load_tasks(environment.taskset) * (self._setup.rollouts // 100 + 1))
            await asyncio.gather(*(self._lane(serving, tasks, lane) for lane in range(self._setup.concurrent)))
            _tell("over")
            await listening

    async def _lane(self, serving: Serving, tasks: Any, lane: int) -> None:
        for number in range(lane, self._setup.rollouts, self._setup.concurrent):
            task: Task = next(tasks)
            trace = await serving.run(task, number)
            assert trace.failure is None, trace.failure
            self._after_each.append(rss_bytes() / 2**20)

    async def _listen(self, lag: LoopLagMonitor) -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            word = json.loads(line)
            if word == "figures":
                _tell(msgspec.to_builtins(self._figures(lag)))
            else:
                self._program.waiting.pop(word).set()

    def _figures(self, lag: LoopLagMonitor) -> Figures:
        seen, cpu_s = lag.take_interval(), time.process_time()
        cpu_s, self._cpu_s = cpu_s - self._cpu_s, cpu_s
        rss, peak = rss_bytes() / 2**20, peak_rss_bytes() / 2**20
        new = lag.stalls[self._stalls :]
        self._stalls += len(new)
        stalls = [f"{stall.duration_s * 1e3:.0f} ms, {stall.kind.value}, at\n{stall.stack}" for stall in new]
        return Figures(cpu_s, seen.p99_s * 1e3, seen.max_s * 1e3, rss, peak, self._after_each, stalls)


class Doorway:
    """The other end: doors as they open, and the worker's figures."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.doors: asyncio.Queue[Door | None] = asyncio.Queue(1024)
        self._figures: asyncio.Queue[Figures] = asyncio.Queue(1)

    async def listen(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            word = json.loads(line)
            if word == "over":
                await self.doors.put(None)
            elif "number" in word:
                await self.doors.put(msgspec.convert(word, Door))
            else:
                await self._figures.put(msgspec.convert(word, Figures))
        await self.doors.put(None)

    async def figures(self) -> Figures:
        self._say("figures")
        return await asyncio.wait_for(self._figures.get(), 60)

    def done(self, door: Door) -> None:
        self._say(door.number)

    def _say(self, word: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(word).encode() + b"\n")


@asynccontextmanager
async def doorway(setup: Setup, kind: str = "worker") -> AsyncIterator[Doorway]:
    """A worker process of its own, or what stands in its place."""
    argv = [sys.executable, "-m", f"benchmarks.doors.{kind}", msgspec.json.encode(setup).decode()]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, limit=2**24, env={**os.environ})
    door = Doorway(process)
    listening = asyncio.create_task(door.listen())
    try:
        yield door
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 20)
        except TimeoutError:
            process.kill()
            await process.wait()
        await listening


if __name__ == "__main__":
    run(Worker(msgspec.json.decode(sys.argv[1], type=Setup)).serve())
