"""The neighbours of an orchestrator: a process that sends finished rollouts as a broker does, the end of it that looks
like a served environment, and a process that trains, which means that it reads every page of a batch and acks."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy as np
import zmq

from rollwright.orchestrator.transports import BatchReceiver
from rollwright.telemetry import LagSnapshot, LoopLagMonitor, run
from rollwright.wire import Trace
from rollwright.wire.codec import decode, encode

from .payload import Size, calls_of, trace_of

_spawn = multiprocessing.get_context("spawn")
PATIENCE_S = 600.0
TICK_S = 0.01
NICE = 10
"""Neighbours have machines of their own; here they share one, and step back."""


class Wanted(msgspec.Struct):
    task: str
    attempt: int


def feed(address: str, size: Size) -> None:
    """Answer each wish for a rollout with its frames, from the same memory each time. Ends with an empty wish."""
    os.nice(NICE)
    calls = calls_of(size)
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        # A broker holds finished rollouts until the line is free; this one makes them as it goes.
        socket.setsockopt(zmq.SNDHWM, 4)
        socket.connect(address)
        socket.send(b"ready")
        while wish := socket.recv():
            wanted = msgspec.msgpack.decode(wish, type=Wanted)
            socket.send_multipart([wish, *encode(trace_of(calls, wanted.task, wanted.attempt))], copy=False)


class FedRunner:
    """A served environment whose rollouts are all finished: `run_group` takes as long as its frames take to come."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._waiting: dict[bytes, asyncio.Future[Trace]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(socket.FD, self._drain)

    async def run_group(self, task: str, n: int, *, first_attempt: int = 0) -> list[Trace]:
        wishes = [msgspec.msgpack.encode(Wanted(task, first_attempt + index)) for index in range(n)]
        futures = [self._waiting.setdefault(wish, self._loop.create_future()) for wish in wishes]
        for wish in wishes:
            self._socket.send(wish, zmq.NOBLOCK)
        self._loop.call_soon(self._drain)
        return await asyncio.gather(*futures)

    def cancel_rollout(self, task: str, attempt: int) -> bool:
        return False

    async def tell_policy(self, version: int) -> None:
        return

    def close(self) -> None:
        self._loop.remove_reader(self._socket.FD)

    def _drain(self) -> None:
        """One message per turn of the loop; the descriptor signals edges, so look again after each."""
        try:
            wish, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return
        trace = decode([frame.buffer for frame in frames], Trace)
        # Who ends a run cancels what he does not need any more.
        if not (future := self._waiting.pop(wish.bytes)).done():
            future.set_result(trace)
        self._loop.call_soon(self._drain)


@asynccontextmanager
async def fed_runner(address: str, size: Size) -> AsyncIterator[FedRunner]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.PAIR)
    # Frames that nobody has asked for yet stay with the feeder.
    socket.setsockopt(zmq.RCVHWM, 4)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.bind(address)
    process = _spawn.Process(target=feed, args=(address, size), daemon=True)
    process.start()
    await asyncio.to_thread(socket.recv)
    runner = FedRunner(socket)
    try:
        yield runner
    finally:
        runner.close()
        process.kill()
        await asyncio.to_thread(process.join, PATIENCE_S)
        context.destroy(linger=0)


def train(source: str, key: str, steps: int, told: Connection) -> None:
    """Receive, read a byte of every page, ack. Tells what it saw."""
    os.nice(NICE)
    seen: list[dict[str, Any]] = []
    with BatchReceiver(source, key=key) as receiver:
        for _ in range(steps):
            batch = receiver.receive(PATIENCE_S)
            began = time.monotonic()
            routed = [(sample.routed, sample.routed_hole) for sample in batch.samples]
            pages = sum(int(rows.reshape(-1)[::4096].sum(dtype=np.int64)) for rows, _ in routed if rows is not None)
            receiver.ack()
            whole = sum(not hole[:-1].any() for _, hole in routed if hole is not None)
            seen.append(
                {"tokens": batch.tokens, "pages": pages, "routed": int(whole), "read_s": time.monotonic() - began}
            )
    told.send_bytes(msgspec.json.encode(seen))


def idle(told: Connection, until: Connection) -> None:
    """A loop with nothing to do, which tells how late the machine makes any loop."""

    async def watch() -> LagSnapshot:
        async with LoopLagMonitor(TICK_S, stall_over_s=None) as lag:
            told.send_bytes(b"ready")
            await asyncio.to_thread(until.poll, PATIENCE_S)
            return lag.snapshot()

    told.send_bytes(msgspec.json.encode(run(watch())))


class IdleLoop:
    """The process that idles."""

    def __init__(self) -> None:
        self._end, theirs = _spawn.Pipe(duplex=False)
        until, self._until = _spawn.Pipe(duplex=False)
        self._process = _spawn.Process(target=idle, args=(theirs, until), daemon=True)
        self._process.start()
        self._end.recv_bytes()

    def snapshot(self) -> LagSnapshot:
        self._until.send_bytes(b"enough")
        seen = msgspec.json.decode(self._end.recv_bytes(), type=LagSnapshot)
        self._process.join(PATIENCE_S)
        return seen


class Trainer:
    """The process that trains."""

    def __init__(self, source: str, key: str, steps: int) -> None:
        self._end, theirs = _spawn.Pipe(duplex=False)
        self._process = _spawn.Process(target=train, args=(source, key, steps, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def seen(self) -> list[dict[str, float]]:
        """Blocks until it has seen all."""
        if not self._end.poll(PATIENCE_S):
            raise TimeoutError("the trainer did not see all batches")
        seen: list[dict[str, float]] = msgspec.json.decode(self._end.recv_bytes())
        self._process.join(PATIENCE_S)
        return seen

    def kill(self) -> None:
        self._process.kill()
        self._process.join(PATIENCE_S)
