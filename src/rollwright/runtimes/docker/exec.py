"""A program in a container with its streams: run to its end, its deadline or its caller's cancellation.

The end of a command is the end of the program that was started, as the engine tells it. Its output usually ends at the
same moment and is then the signal; a child that holds the streams, or a program that closed them early, is found out by
asking the engine now and then. An exit code from 129 to 192 is told as a signal: the engine has one number for both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from rollwright.runtimes.contract import Ending, ExecResult
from rollwright.runtimes.local import shielded
from rollwright.wire import RuntimeFault, RuntimeLost

from .api import Engine
from .containers import is_running
from .frames import STDOUT, FrameReader, Kept
from .hunt import KILL_S, Hunt

_GRACE_S = 0.1
_FIRST_LOOK_S = 0.02
_LOOK_S = 1.0
_LOOK_SOON_S = 0.1
_CHUNK = 65536
_TIMED_OUT_CODE = 124
_KILLED = 137
_OWN_WORDS = b"OCI runtime"
"""How an engine begins to tell, in place of the program, why it could not start it."""


@dataclass(frozen=True, slots=True)
class Status:
    """What the engine knows of a program. `pid` is the engine's own number, 0 where it never started."""

    running: bool
    exit_code: int
    pid: int


class Exec:
    """A running program. Whoever makes it awaits `finish` or `end`, and then calls `close`."""

    def __init__(
        self,
        engine: Engine,
        container_id: str,
        exec_id: str,
        mark: str,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        hunt: Hunt | None,
        give_up: Callable[[], Awaitable[None]],
        output_limit: int,
    ) -> None:
        self._engine = engine
        self._container_id = container_id
        self._id = exec_id
        self._mark = mark
        self._reader, self._writer = streams
        self._hunt = hunt
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._frames = FrameReader()
        self._pulling = asyncio.Lock()
        self._unread = bytearray()
        self._stdout: Kept | None = None
        self._stderr = Kept(output_limit)
        self._limit = output_limit
        self._feeding: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._heard_out = False
        self.ended_by_box = False
        """The box was stopped or reset under it: its result means nothing."""

    def feed_all(self, data: bytes) -> None:
        """Feed `data` while the program runs and close its stdin after it."""
        self._feeding = asyncio.create_task(self._feed_all(data), name=f"stdin of {self._id[:12]}")

    async def feed(self, data: bytes) -> bool:
        """Feed `data`; False where nobody takes it any more. Each goes in whole, in the order of asking."""
        try:
            async with self._turn:
                for at in range(0, len(data), _CHUNK):
                    self._writer.write(data[at : at + _CHUNK])
                    await self._writer.drain()
        except (OSError, RuntimeError):
            return False
        return not self._writer.is_closing()

    def close_stdin(self) -> None:
        with suppress(OSError, RuntimeError):
            if not self._writer.is_closing():
                self._writer.write_eof()

    async def read(self, limit: int) -> bytes:
        """The next bytes of stdout; b"" at its end. Nothing is pulled ahead, so a slow reader slows the program."""
        while not self._unread and not self._heard_out:
            await self._pull()
        part = bytes(self._unread[: max(limit, 1)])
        del self._unread[: len(part)]
        return part

    async def finish(self, timeout_s: float) -> ExecResult:
        """Wait for the program; at the deadline or when cancelled, end it with all its children first."""
        if self._stdout is None:
            self._stdout = Kept(self._limit)
            self._stdout.add(bytes(self._unread))
            self._unread.clear()
        waiting = asyncio.create_task(self._until_end(), name=f"wait for {self._id[:12]}")
        try:
            await asyncio.wait({waiting}, timeout=timeout_s)
            timed_out = not waiting.done()
            if timed_out:
                await _dropped(waiting)
                await shielded(self.end(), within_s=2 * KILL_S + 5)
                await self._hear_out()
            status = await self.status() if timed_out else waiting.result()
        except asyncio.CancelledError:
            await _dropped(waiting)
            with suppress(RuntimeFault):  # The box was ended as a whole; the cancellation must go on.
                await shielded(self.end(), within_s=2 * KILL_S + 5)
            raise
        if not timed_out and status.exit_code == _KILLED and not await is_running(self._engine, self._container_id):
            raise RuntimeLost("the container ended while a program ran in it")
        return self._result(self._stdout, status, timed_out=timed_out)

    async def end(self) -> None:
        """Kill the program with all its children and see them gone; where that fails, end the box as a whole.

        The last hunt begins after the program was seen to have ended, so nothing it started slips through. A program
        that is itself a hunter is not hunted.
        """
        if self.ended_by_box:
            return
        if self._hunt is None:
            await self._give_up()
            return
        try:
            async with asyncio.timeout(KILL_S):
                running = True
                while running:
                    status = await self.status()
                    await self._hunt(self._mark, status.pid)
                    running = status.running
        except (RuntimeFault, TimeoutError):
            await self._give_up()

    async def status(self) -> Status:
        """What the engine knows; a program that it has forgotten has ended with its container."""
        reply = await self._engine.call("GET", f"/exec/{self._id}/json", allow=(404,))
        if reply.status == 404:
            return Status(False, _KILLED, 0)
        told = reply.value
        return Status(bool(told["Running"]), int(told.get("ExitCode") or 0), int(told.get("Pid") or 0))

    def close(self) -> None:
        """Let go of the connection. Idempotent."""
        if self._feeding is not None:
            self._feeding.cancel()
        self._heard_out = True
        # Closing politely would wait for an ended program to take the rest of its stdin.
        self._writer.transport.abort()

    async def _feed_all(self, data: bytes) -> None:
        if await self.feed(data):
            self.close_stdin()

    async def _until_end(self) -> Status:
        """The program's status after its end, with the output that came until then heard."""
        hearing = asyncio.create_task(self._hear(), name=f"output of {self._id[:12]}")
        try:
            pause = _FIRST_LOOK_S
            while not hearing.done():
                await asyncio.wait({hearing}, timeout=pause)
                if not hearing.done() and not (status := await self.status()).running:
                    await asyncio.wait({hearing}, timeout=_GRACE_S)
                    return status
                pause = min(2 * pause, _LOOK_S)
            hearing.result()
            pause = _FIRST_LOOK_S
            while (status := await self.status()).running:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LOOK_SOON_S)
            return status
        finally:
            await _dropped(hearing)

    async def _hear(self) -> None:
        while not self._heard_out:
            await self._pull()

    async def _hear_out(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                await self._hear()

    async def _pull(self) -> None:
        """Take the next bytes off the connection and hand them to their streams."""
        async with self._pulling:
            try:
                chunk = b"" if self._heard_out else await self._reader.read(_CHUNK)
            except OSError:
                chunk = b""
            self._heard_out = not chunk
            for stream, part in self._frames.feed(chunk):
                if stream != STDOUT:
                    self._stderr.add(part)
                elif self._stdout is not None:
                    self._stdout.add(part)
                else:
                    self._unread += part

    def _result(self, stdout: Kept, status: Status, *, timed_out: bool) -> ExecResult:
        code = status.exit_code
        if not timed_out and not status.pid and _OWN_WORDS in stdout.data()[:200] + self._stderr.data()[:200]:
            # It never ran. Other engines forget the number of every program that has ended, hence the second look.
            raise RuntimeFault(f"could not start a program: {_told(stdout.data() + self._stderr.data())}")
        ending = Ending.TIMED_OUT if timed_out else Ending.SIGNALLED if 129 <= code <= 192 else Ending.EXITED
        return ExecResult(
            ending=ending,
            exit_code=_TIMED_OUT_CODE if timed_out else code,
            stdout=stdout.data(),
            stderr=self._stderr.data(),
            stdout_dropped=stdout.dropped,
            stderr_dropped=self._stderr.dropped,
            wall_s=self._loop.time() - self._began,
        )


async def run_to_end(command: Exec, stdin: bytes, timeout_s: float) -> ExecResult:
    """Feed `stdin`, wait, and close; what is left of the command afterwards is its result."""
    try:
        if stdin:
            command.feed_all(stdin)
        return await command.finish(timeout_s)
    finally:
        command.close()


def _told(words: bytes) -> str:
    return words[:1000].decode("utf-8", "replace").strip()


async def _dropped(task: asyncio.Task[object] | asyncio.Task[None] | asyncio.Task[Status]) -> None:
    """Cancel `task` and see it end; a cancellation of ours goes on after that."""
    task.cancel()
    await asyncio.wait({task}, timeout=5.0)
    if task.done() and not task.cancelled():
        task.exception()
