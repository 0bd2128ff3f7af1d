"""The way into one sandbox: the `Link` and the `Wire` of remote boxes, on top of the vendor's exec.

The vendor's exec has no kill and cannot tell a program's output from that of its children; box.sh in the box does both
(see remote/). Here bytes are carried, and nothing waits for a box that has ended.
"""

from __future__ import annotations

import asyncio
import logging
import math
import shlex
from collections.abc import Awaitable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from rollwright.runtimes.remote import LinkBroken
from rollwright.wire import RuntimeFault, RuntimeLost

from .vendor import broken, is_conflict

T = TypeVar("T")

log = logging.getLogger("rollwright.runtimes")

_PIECE = 1 << 20
_PIECES = 64
_UPLOAD_S = 300.0
_OPEN_S = 60.0
_MARGIN_S = 30.0


class ModalLink:
    """`ended` is set, with the reason, when the box is over."""

    def __init__(self, sandbox: Any, name: str) -> None:
        self._sandbox = sandbox
        self.name = name
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def end(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)

    async def execute(self, line: str, env: Mapping[str, str], timeout_s: float) -> bytes:
        return await self._within(self._run(line, env, None, timeout_s), timeout_s)

    async def upload(self, path: str, data: bytes) -> None:
        """Repeated where it failed on the way: a file that is written twice is the same file."""
        line = f"cat > {shlex.quote(path)} && echo ok"
        for last in (False, False, True):
            try:
                said = await self._within(self._run(line, {}, data, _UPLOAD_S), _UPLOAD_S)
            except LinkBroken as error:
                if last:
                    raise RuntimeLost(f"box {self.name} does not take a file: {error}") from error
                log.debug("%s: a file of %d bytes is brought again: %s", self.name, len(data), error)
                continue
            if said != b"ok\n":
                raise RuntimeFault(f"a file of {len(data)} bytes could not be brought into box {self.name}")
            return

    async def open(self, line: str, env: Mapping[str, str]) -> ModalWire:
        """A live program of box.sh. It is there when this returns: one that is called off before that would say so as
        its output."""
        wire = await self.open_plain(line, {**env, "RW_HELLO": "1"})
        try:
            await self._within(self._greeted(wire), _OPEN_S)
        except BaseException:
            await wire.close()
            raise
        return wire

    async def open_plain(self, line: str, env: Mapping[str, str]) -> ModalWire:
        return ModalWire(await self._within(self._exec(line, env, None), _OPEN_S), self)

    async def _greeted(self, wire: ModalWire) -> None:
        said = b""
        while b"\n" not in said:
            if not (piece := await wire.read()):
                raise LinkBroken(f"a program was not begun: {said[:200]!r}")
            said += piece
        greeting, _, rest = said.partition(b"\n")
        if greeting == b"rollwright nowhere":
            raise RuntimeFault("the working directory of a program is not there")
        if greeting != b"rollwright began":
            raise LinkBroken(f"a program was not begun: {said[:200]!r}")
        wire.unread(rest)

    async def until_ended(self, work: Coroutine[Any, Any, T]) -> T:
        """`work`, with the vendor's errors translated; RuntimeLost as soon as the box has ended."""
        task = asyncio.create_task(work)
        try:
            both: set[asyncio.Future[Any]] = {task, self.ended}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise RuntimeLost(f"box {self.name} {self.ended.result()}")
            return task.result()
        except (RuntimeFault, LinkBroken):
            raise
        except Exception as error:
            if self.ended.done():
                raise RuntimeLost(f"box {self.name} {self.ended.result()}") from error
            raise broken(error, self.name) from error
        finally:
            await ended_task(task)

    async def _within(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        try:
            async with asyncio.timeout(timeout_s + _MARGIN_S):
                return await self.until_ended(work)
        except TimeoutError as error:
            raise LinkBroken(f"no answer within {timeout_s + _MARGIN_S:g} s") from error

    async def _exec(self, line: str, env: Mapping[str, str], timeout_s: float | None) -> Any:
        limit = None if timeout_s is None else math.ceil(timeout_s + _MARGIN_S)
        return await self._sandbox.exec.aio("sh", "-c", line, env=dict(env), text=False, timeout=limit)

    async def _run(self, line: str, env: Mapping[str, str], stdin: bytes | None, timeout_s: float) -> bytes:
        process = await self._exec(line, env, timeout_s)
        if stdin is not None:
            await feed(process, stdin, last=True)
        pieces = [bytes(piece) async for piece in process.stdout]
        if await process.wait.aio() == -1:
            raise LinkBroken("the vendor ended the command at its own deadline")
        return b"".join(pieces)


class ModalWire:
    """A live program. Its stdout is taken over into a bounded queue, so that a cancelled read loses nothing."""

    def __init__(self, process: Any, link: ModalLink) -> None:
        self._process = process
        self._link = link
        self._pieces: asyncio.Queue[bytes | Exception] = asyncio.Queue(maxsize=_PIECES)
        self._over: bytes | Exception | None = None
        self._first = b""
        self._getting: asyncio.Task[bytes | Exception] | None = None
        self._stdout = asyncio.create_task(self._take_over(), name="stdout of a modal command")
        self._stderr = asyncio.create_task(self._all_stderr(), name="stderr of a modal command")

    async def write(self, data: bytes) -> None:
        await self._link.until_ended(feed(self._process, data, last=False))

    def unread(self, piece: bytes) -> None:
        self._first = piece

    async def read(self) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            return first
        if self._over is None:
            # The task stays for the next reader where this one is cancelled: a piece in its hands is not lost.
            self._getting = self._getting or asyncio.create_task(self._pieces.get())
            piece = await self._link.until_ended(_shared(self._getting))
            self._getting = None
            if piece and not isinstance(piece, Exception):
                return piece
            self._over = piece
        if isinstance(self._over, Exception):
            raise self._over
        return self._over

    async def ended(self) -> bytes:
        return await self._link.until_ended(_shared(self._stderr))

    async def close(self) -> None:
        for task in (self._stdout, self._stderr, self._getting):
            if task is not None:
                await ended_task(task)

    async def _take_over(self) -> None:
        try:
            async for piece in self._process.stdout:
                if piece:
                    await self._pieces.put(bytes(piece))
            await self._pieces.put(b"")
        except Exception as error:  # The SDK's border: handed to whoever reads.
            await self._pieces.put(broken(error, self._link.name))

    async def _all_stderr(self) -> bytes:
        return b"".join([bytes(piece) async for piece in self._process.stderr])


async def feed(process: Any, data: bytes, *, last: bool) -> None:
    """Write to a program, and end its input after the `last` piece. LinkBroken where the program takes no more."""
    try:
        for at in range(0, len(data), _PIECE):
            process.stdin.write(data[at : at + _PIECE])
            await process.stdin.drain.aio()
        if last:
            process.stdin.write_eof()
            await process.stdin.drain.aio()
    except Exception as error:  # The SDK's border. Of a command that has ended it says the same as of a box that has.
        if is_conflict(error):
            raise LinkBroken("the program takes no more input") from error
        raise


async def ended_task(task: asyncio.Task[Any]) -> None:
    """See a task end, cancelled if need be. What it raised is looked at, so that the loop does not report it."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        with suppress(Exception):
            task.exception()


async def _shared(task: asyncio.Task[T]) -> T:
    waiting: Awaitable[T] = asyncio.shield(task)
    return await waiting
