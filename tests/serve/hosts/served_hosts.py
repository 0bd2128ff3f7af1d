"""What the workers of these tests serve. A task's id says what happens to it."""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np

from rollwright.serve.hosting import Each
from rollwright.serve.protocol import Ending, Job, amendments
from rollwright.wire import CallRecord, Node, Score, TokenSegment, Trace, assistant


def trace_of(job: Job, position: int, mb: float = 0.0) -> Trace:
    calls: tuple[CallRecord, ...] = ()
    if mb:
        count = int(mb * 2**20 / 4)
        ids = np.arange(count, dtype=np.int32)
        calls = (
            CallRecord(-1, 0, tokens=TokenSegment(-1, ids, np.ones(count, np.bool_), np.zeros(count, np.float32))),
        )
    said = (Node(-1, assistant(f"pid {os.getpid()}"), 0 if calls else -1),)
    return Trace(job.task_id, job.attempts[position], nodes=said, calls=calls)


class PuppetHost:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._hog: list[bytes] = []

    async def probe(self) -> None:
        if (self._directory / "probe-fails").exists():
            raise RuntimeError("there is nothing to serve")

    def cancel(self, job: Job, position: int) -> bool:
        (self._directory / f"withdrawn-{job.attempts[position]}-{os.getpid()}").touch()
        return True

    def tell_policy(self, version: int) -> None:
        pass

    def vitals(self) -> dict[str, float]:
        return {"hogged": float(len(self._hog))}

    def _note(self, job: Job, position: int) -> None:
        with (self._directory / "runs").open("a") as runs:
            runs.write(f"{job.task_id} {job.attempts[position]} {os.getpid()}\n")

    async def run(self, job: Job, positions: Sequence[int], each: Each) -> Ending:
        verb, _, value = job.task_id.partition(":")
        before: list[Trace] = []
        for position in positions:
            self._note(job, position)
            await self._act(verb, value, job, position)
            before.append(trace_of(job, position, float(value) if verb == "large" else 0.0))
            each(position, before[-1])
        if verb != "scored":
            return Ending()
        after = [
            msgspec.structs.replace(trace, scores={"rank": Score(i, 1.0)}, reward=i) for i, trace in enumerate(before)
        ]
        return amendments(positions, before, after)

    async def _act(self, verb: str, value: str, job: Job, position: int) -> None:
        if verb == "sleep":
            await self._sleep(float(value))
        elif verb == "hold":
            await self._until_told(value)
        elif verb == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        elif verb == "once" and not (self._directory / f"{value}-{position}").exists():
            (self._directory / f"{value}-{position}").touch()
            if position == len(job.attempts) - 1:
                await self._until_seen(position)
                os.kill(os.getpid(), signal.SIGKILL)
        elif verb == "block":
            time.sleep(float(value))  # noqa: ASYNC251 - the stall is what is tested
        elif verb == "freeze":
            self._freeze(value)
        elif verb == "spin":
            _hold_the_interpreter(float(value))
        elif verb == "broken":
            raise ValueError("no such thing")
        elif verb == "grow":
            self._hog.append(os.urandom(int(value) * 2**20))

    async def _until_told(self, name: str) -> None:
        async with asyncio.timeout(60):
            while not (self._directory / name).exists():
                await asyncio.sleep(0.01)

    def _freeze(self, name: str) -> None:
        """Block the loop until told."""
        until = time.monotonic() + 60
        while not (self._directory / name).exists() and time.monotonic() < until:
            time.sleep(0.01)

    async def _until_seen(self, count: int) -> None:
        """Until the client has marked the first `count` traces: what a killed process sent last may never leave it."""
        async with asyncio.timeout(30):
            while not all((self._directory / f"seen-{number}").exists() for number in range(count)):
                await asyncio.sleep(0.01)

    async def _sleep(self, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            (self._directory / f"cancelled-{os.getpid()}").touch()
            raise


def _hold_the_interpreter(seconds: float) -> None:
    """Compute without ever letting another thread run, as a call into C does that keeps the interpreter."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
    sys.setswitchinterval(before)


@asynccontextmanager
async def puppet(options: str) -> AsyncIterator[PuppetHost]:
    yield PuppetHost(Path(json.loads(options)["directory"]))


@asynccontextmanager
async def asleep(options: str) -> AsyncIterator[PuppetHost]:
    await asyncio.Event().wait()
    yield PuppetHost(Path())


@asynccontextmanager
async def broken(options: str) -> AsyncIterator[PuppetHost]:
    raise RuntimeError("the environment cannot be opened")
    yield


@asynccontextmanager
async def loud(options: str) -> AsyncIterator[PuppetHost]:
    """Says something in every way, and breaks."""
    print(f"printed {options}", file=sys.stderr)
    logging.getLogger("loud").warning("logged %s\nin two lines", options)
    raise ValueError(options)
    yield
