"""A program in a remote box that is talked to while it runs: the `Process` of the contract over a vendor's stream.

Input travels as lines of text with escapes, since vendors' streams have no end of input; box.sh turns them into bytes
again. Each piece written is one request to the vendor, so a word and its answer cost two trips to the box.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

import msgspec

from rollwright.runtimes.contract import Ending, ExecResult
from rollwright.runtimes.local import shielded
from rollwright.wire import RuntimeFault

from .commands import LinkBroken, RemoteShell, parse_report

KILL_S = 60.0
_PIECE = 12 << 10
_PLAIN = frozenset(range(0x20, 0x7F)) - {0x5C}
_ESCAPES = [chr(byte) if byte in _PLAIN else f"\\0{byte:03o}" for byte in range(256)]


class Wire(Protocol):
    """A vendor's stream to one live process."""

    async def write(self, data: bytes) -> None: ...
    async def read(self) -> bytes:
        """The next piece of stdout; b"" at its end. LinkBroken where some of it was lost."""
        ...

    async def ended(self) -> bytes:
        """All of stderr, once the process has ended. LinkBroken where some of it was lost."""
        ...

    async def close(self) -> None: ...


class RemoteProcess:
    """`check` raises RuntimeLost once the box was stopped or reset under it; `on_close` is called once, at the end."""

    def __init__(
        self,
        shell: RemoteShell,
        number: int,
        wire: Wire,
        limit: int,
        check: Callable[[], None],
        on_close: Callable[[], None],
    ) -> None:
        self._shell = shell
        self._number = number
        self._wire = wire
        self._limit = limit
        self._check = check
        self._on_close = on_close
        self._unread = b""
        self._at_end = False
        self._turn = asyncio.Lock()
        self._rest = bytearray()
        self._dropped = 0
        self._result: ExecResult | None = None
        self._closed = False

    async def write(self, data: bytes) -> None:
        async with self._turn:
            for at in range(0, len(data), _PIECE):
                await self._say(f"={''.join(_ESCAPES[byte] for byte in data[at : at + _PIECE])}\n".encode())

    async def close_stdin(self) -> None:
        with suppress(RuntimeFault):  # A program that has ended has no standard input to close.
            await self._say(b".\n")

    async def read(self, limit: int = 65536) -> bytes:
        if not self._unread and not self._at_end:
            self._unread = await self._hear()
            self._at_end = not self._unread
        if self._at_end:
            self._check()  # The end of a box is not the end of a program's output.
        piece, self._unread = self._unread[:limit], self._unread[limit:]
        return piece

    async def wait(self, timeout_s: float) -> ExecResult:
        if self._result is None:
            self._check()
            try:
                self._result = await self._finish(timeout_s)
                self._check()
            finally:
                await shielded(self._close(), within_s=KILL_S)
        return self._result

    async def kill(self) -> None:
        if not self._closed:
            self._check()
            await shielded(self._shell.kill(self._number), within_s=KILL_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        try:
            with suppress(RuntimeFault):  # What a lost box held is gone with it.
                await self.kill()
        finally:
            await shielded(self._close(), within_s=KILL_S)

    async def _say(self, line: bytes) -> None:
        try:
            await self._wire.write(line)
        except LinkBroken as error:
            self._check()
            raise RuntimeFault("the program closed its standard input") from error

    async def _hear(self) -> bytes:
        try:
            return await self._wire.read()
        except LinkBroken as error:
            self._check()
            raise RuntimeFault("some of a program's output was lost on the way") from error

    async def _finish(self, timeout_s: float) -> ExecResult:
        late = False
        hearing = asyncio.create_task(self._hear_out(), name=f"output of command {self._number}")
        try:
            await asyncio.wait({hearing}, timeout=timeout_s)
            self._check()
            if late := not hearing.done():
                await shielded(self._shell.kill(self._number), within_s=KILL_S)
                await asyncio.wait({hearing}, timeout=KILL_S)
        except asyncio.CancelledError:
            with suppress(RuntimeFault):
                await shielded(self._shell.kill(self._number), within_s=KILL_S)
            raise
        finally:
            hearing.cancel()
            await asyncio.wait({hearing})
        result = hearing.result() if not hearing.cancelled() else await self._shell.report(self._number)
        if late:
            result = msgspec.structs.replace(result, ending=Ending.TIMED_OUT, exit_code=124)
        return msgspec.structs.replace(result, stdout=bytes(self._rest), stdout_dropped=self._dropped)

    async def _hear_out(self) -> ExecResult:
        """Take the output to its end, then the report. A report that the stream lost is asked for by its number."""
        self._keep(self._unread)
        self._unread = b""
        while not self._at_end:
            piece = await self._hear()
            self._at_end = not piece
            self._keep(piece)
        try:
            said = await self._wire.ended()
            return parse_report(said[said.rfind(b"rollwright ") :], wall_s=0.0)
        except (LinkBroken, RuntimeFault):
            self._check()
            return await self._shell.report(self._number)

    def _keep(self, piece: bytes) -> None:
        room = self._limit - len(self._rest)
        self._rest += piece[:room]
        self._dropped += max(0, len(piece) - room)

    async def _close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                await self._wire.close()
            finally:
                self._shell.forget(self._number)
                self._on_close()
