"""A program with its pipes: run to its end, its deadline or its caller's cancellation, and then leave nothing open.

The end of a command is the end of the program that was started. Children that it leaves behind live on in the box; when
they hold the output pipes, what they write within a short grace is still heard, then the pipes are closed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress

from rollwright.runtimes.contract import Ending, ExecResult
from rollwright.wire import RuntimeFault

from .census import Quarry, grasp_tree, strike_handles, sweep
from .child import Child, Launch
from .confine import GATE
from .pipes import Collector, Puller, Writer
from .shield import shielded
from .spawned import Spawned
from .threads import in_thread

KILL_S = 10.0
"""How long ending a tree may take before the box counts as broken."""
_GRACE_S = 0.1
TIMED_OUT_CODE = 124

Spawn = Callable[[Launch, int, int, int], Spawned]
"""How a program comes to be: what it starts with, and its three streams."""


class Command:
    """A running program. Whoever makes it awaits `finish` or `end`, and then calls `close`."""

    def __init__(self, launch: Launch, quarry: Quarry, *, feeds: bool, output_limit: int, spawn: Spawn = Child) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._quarry = quarry
        self._limit = output_limit
        self.survived = False
        """Some of its processes could not be ended."""
        self.ended_by_box = False
        """The box was stopped or reset under it: its result means nothing."""
        ends: list[int] = []
        try:
            gated = launch.confinement is not None
            stdin, feed = _pipe(ends, inward=True) if feeds or gated else (subprocess.DEVNULL, -1)
            stdout, heard = _pipe(ends, inward=False)
            stderr, cried = _pipe(ends, inward=False)
            self.child = spawn(launch, stdin, stdout, stderr)
            if gated:
                _open_gate(feed)
        except BaseException as error:
            for fd in ends:
                os.close(fd)
            if isinstance(error, OSError):
                raise RuntimeFault(f"could not start a program: {error}") from error
            raise
        for fd in ends:
            if fd in (stdin, stdout, stderr) or (fd == feed and not feeds):
                os.close(fd)
        self.stdin = Writer(feed) if feeds else None
        self.stdout = Puller(heard)
        self._stderr = Collector(cried, output_limit)
        self._rest: Collector | None = None

    async def finish(self, timeout_s: float) -> ExecResult:
        """Wait for the program; at the deadline or when cancelled, end it with all its children first."""
        if self._rest is None:
            self._rest = self.stdout.collect(self._limit)
        try:
            await self._await_exit(timeout_s)
            timed_out = not self.child.exited.done()
            if timed_out:
                await shielded(self.end(), within_s=KILL_S + 2)
            await self._hear_out()
        except asyncio.CancelledError:
            with suppress(RuntimeFault):  # Kept in `survived`; the cancellation must go on.
                await shielded(self.end(), within_s=KILL_S + 2)
            raise
        return self._result(self._rest, timed_out=timed_out)

    async def end(self) -> None:
        """Kill the program with all its children, also those that left its session, and see them gone."""
        try:
            # The tree is looked at while the program holds it together, and the program is killed first: it would
            # write about the death of its children.
            below = [] if self.child.exited.done() else await in_thread(grasp_tree, self.child.pid)
            self.child.kill_group()
            strike_handles(below)
            await sweep(self._quarry, within_s=KILL_S)
            await asyncio.wait({self.child.exited}, timeout=KILL_S)
        except RuntimeFault:
            self.survived = True
            raise
        if not self.child.exited.done():
            self.survived = True
            raise RuntimeFault(f"process {self.child.pid} does not die")

    def close(self) -> None:
        """Close the pipes and reap the program, now or when it ends. Idempotent."""
        if self.stdin is not None:
            self.stdin.close()
        for stream in (self.stdout, self._stderr, self._rest):
            if stream is not None:
                stream.close()
        self.child.release()

    async def _await_exit(self, timeout_s: float) -> None:
        """Wait for the program's end, or for its deadline."""
        await asyncio.wait({self.child.exited}, timeout=timeout_s)

    async def _hear_out(self) -> None:
        """Take what the program wrote; the pipes held all of it when it ended, unless its children write on."""
        assert self._rest is not None
        streams = (self._rest, self._stderr)
        for stream in streams:
            stream.drain()
        waiting = [stream.eof for stream in streams if not stream.eof.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=_GRACE_S)

    def _result(self, stdout: Collector, *, timed_out: bool) -> ExecResult:
        status = self.child.reap()
        ending = Ending.TIMED_OUT if timed_out else Ending.SIGNALLED if status < 0 else Ending.EXITED
        return ExecResult(
            ending=ending,
            exit_code=TIMED_OUT_CODE if timed_out else 128 - status if status < 0 else status,
            stdout=stdout.data(),
            stderr=self._stderr.data(),
            stdout_dropped=stdout.dropped,
            stderr_dropped=self._stderr.dropped,
            wall_s=self._loop.time() - self._began,
        )


async def run_to_end(command: Command, stdin: bytes, timeout_s: float) -> ExecResult:
    """Feed `stdin`, wait, and close; what is left of the command afterwards is its result."""
    try:
        if command.stdin is not None:
            command.stdin.start(stdin)
        return await command.finish(timeout_s)
    finally:
        command.close()


def _open_gate(feed: int) -> None:
    """Let the program begin. The pipe is empty, so this does not block; a shell that is gone already needs no gate."""
    with suppress(BrokenPipeError):
        os.write(feed, GATE)


def _pipe(ends: list[int], *, inward: bool) -> tuple[int, int]:
    """A pipe as (the program's end, our end); ours does not block. Both are noted in `ends`."""
    reading, writing = os.pipe()
    ends += [reading, writing]
    theirs, ours = (reading, writing) if inward else (writing, reading)
    os.set_blocking(ours, False)
    return theirs, ours
