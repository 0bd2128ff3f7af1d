"""The host's end of a relay (relay.py): what programs in a remote box send to it reaches one port of this loopback.

It needs no public address, only a live process with stdin and stdout at the vendor and python3 in the image. Bytes to
the box wait for the request before them, so many small pieces become few requests. A stream that breaks, in either
direction, ends the tunnel and every connection in it. What comes out of a box is bounded: frames, connections, and how
long a server of this host may take to read.
"""

from __future__ import annotations

import asyncio
import functools
import shlex
import struct
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path

from rollwright.wire import RuntimeFault

from .commands import LinkBroken
from .process import Wire

START_S = 30.0
_HEAD = struct.Struct(">cII")
_AT_ONCE = 128 << 10
_WAITING = 1 << 20
_CONNECT_S = 10.0
_FRAME = 1 << 20
"""The relay sends at most a sixteenth of it; whatever says more is not the relay."""
_CONNECTIONS = 512


@functools.cache
def relay_line() -> str:
    """The shell line that begins the other end."""
    return f"exec python3 -c {shlex.quote(Path(__file__).with_name('relay.py').read_text())}"


class Tunnel:
    """Carries from `start` to `close`, or until the stream breaks; `broken` tells."""

    def __init__(self, wire: Wire, port: int) -> None:
        self._wire = wire
        self._port = port
        self._inbox = bytearray()
        self._outbox = bytearray()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.broken = False

    def __repr__(self) -> str:
        return f"<Tunnel to port {self._port}, {len(self._writers)} connections{', broken' if self.broken else ''}>"

    async def start(self) -> int:
        """The port inside of the box that leads here."""
        try:
            async with asyncio.timeout(START_S):
                kind, port, _ = await self._frame()
        except (TimeoutError, LinkBroken, EOFError) as error:
            raise RuntimeFault("no relay could be started in the box; is python3 in the image?") from error
        if kind != b"p":
            raise RuntimeFault(f"the relay in the box began with {kind!r}")
        self._spawn(self._carry_in())
        self._spawn(self._carry_out())
        return port

    async def close(self) -> None:
        self.broken = True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
        await self._wire.close()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name=f"tunnel to port {self._port}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _frame(self) -> tuple[bytes, int, bytes]:
        await self._fill(_HEAD.size)
        kind, number, length = _HEAD.unpack_from(self._inbox)
        if length > _FRAME:
            raise LinkBroken(f"the relay in the box announces {length} bytes")
        await self._fill(_HEAD.size + length)
        data = bytes(self._inbox[_HEAD.size : _HEAD.size + length])
        del self._inbox[: _HEAD.size + length]
        return kind, number, data

    async def _fill(self, size: int) -> None:
        while len(self._inbox) < size:
            piece = await self._wire.read()
            if not piece:
                raise EOFError
            self._inbox += piece

    async def _carry_in(self) -> None:
        """From the box to the host. The end of the stream is the end of all connections."""
        try:
            while True:
                kind, number, data = await self._frame()
                if kind == b"o":
                    await self._connect(number)
                elif (writer := self._writers.get(number)) is not None:
                    await self._pass_on(writer, kind, data)
        except (LinkBroken, RuntimeFault, EOFError):
            self._break()

    def _break(self) -> None:
        self.broken = True
        for writer in self._writers.values():
            writer.transport.abort()
        # Whoever waits for the other direction hears of it.
        self._room.set()
        self._news.set()

    async def _pass_on(self, writer: asyncio.StreamWriter, kind: bytes, data: bytes) -> None:
        """A server that does not read holds up all connections, so it loses this one."""
        try:
            if kind == b"d":
                writer.write(data)
                async with asyncio.timeout(_CONNECT_S):
                    await writer.drain()
            elif writer.can_write_eof():
                writer.write_eof()
        except OSError:
            writer.transport.abort()

    async def _connect(self, number: int) -> None:
        if number in self._writers:
            return
        try:
            if len(self._writers) >= _CONNECTIONS:
                raise ConnectionRefusedError
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            await self._send(b"e", number)
            return
        self._writers[number] = writer
        self._spawn(self._carry_back(number, reader, writer))

    async def _carry_back(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From the host to the box, for one connection."""
        try:
            with suppress(LinkBroken):
                with suppress(OSError):
                    while data := await reader.read(32768):
                        await self._send(b"d", number, data)
                await self._send(b"e", number)
        finally:
            self._writers.pop(number, None)
            writer.close()

    async def _send(self, kind: bytes, number: int, data: bytes = b"") -> None:
        await self._room.wait()
        if self.broken:
            raise LinkBroken("the tunnel is broken")
        self._outbox += _HEAD.pack(kind, number, len(data)) + data
        self._news.set()
        if len(self._outbox) > _WAITING:
            self._room.clear()

    async def _carry_out(self) -> None:
        """One request at a time, each with all that came together meanwhile."""
        with suppress(LinkBroken, RuntimeFault):
            while not self.broken:
                await self._news.wait()
                piece = bytes(self._outbox[:_AT_ONCE])
                del self._outbox[:_AT_ONCE]
                if not self._outbox:
                    self._news.clear()
                if len(self._outbox) <= _WAITING:
                    self._room.set()
                await self._wire.write(piece)
        self._break()
