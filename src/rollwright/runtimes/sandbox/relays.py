"""Ports carried between a box without a network and this host, by sockets that were made inside of it.

No process in the box takes part: the warden makes a socket in the box's network and hands it over, and this loop
carries the bytes. Relays end with a reset, like everything else that one user of the box asked for.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from rollwright.wire import RuntimeFault

_CHUNK = 65536
_CONNECT_S = 30.0
_CONNECTIONS = 512

Connect = Callable[[], Awaitable[socket.socket]]


class Relays:
    """All relays of one box."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._carrying: set[asyncio.Task[None]] = set()

    async def open(self, listener: socket.socket, connect: Connect) -> int:
        """Carry what arrives at `listener` to where `connect` leads; the port on which it listens."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            if len(self._carrying) >= _CONNECTIONS:
                writer.transport.abort()
                return
            self._carrying.add(task)
            try:
                await _carry(reader, writer, connect)
            except asyncio.CancelledError:
                writer.transport.abort()
            finally:
                self._carrying.discard(task)

        server = await asyncio.start_server(accept, sock=listener, limit=_CHUNK)
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """End every relay, and wait until none carries any more."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        carrying = list(self._carrying)
        for task in carrying:
            task.cancel()
        if carrying:
            await asyncio.wait(carrying, timeout=_CONNECT_S)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connect: Connect) -> None:
    """Until both sides have said all, or one broke off, or the box is gone."""
    with suppress(OSError, TimeoutError, RuntimeFault):
        async with asyncio.timeout(_CONNECT_S):
            far = await connect()
            far_reader, far_writer = await asyncio.open_connection(sock=far, limit=_CHUNK)
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(_pour(reader, far_writer))
                ways.create_task(_pour(far_reader, writer))
        except BaseException:
            far_writer.transport.abort()
            raise
        far_writer.close()  # What is still on its way is sent before.
    writer.close()


async def _pour(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Carry one way; its end is told to the other side, which may still have something to say."""
    with suppress(OSError):
        while chunk := await source.read(_CHUNK):
            target.write(chunk)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()


def loopback_listener() -> socket.socket:
    """A listening socket on a free port of this host's loopback."""
    return socket.create_server(("127.0.0.1", 0), backlog=128)
