"""Servers of ours that carry bytes between two connections. What they connect to is the caller's business.

A relay accepts a bounded number of connections at once, ends one that is idle for an hour, and closes with all of its
connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from rollwright.wire import RuntimeFault

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Dial = Callable[[], Awaitable[Streams]]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

DIAL_S = 30.0
_IDLE_S = 3600.0
_CHUNK = 65536
_CONNECTIONS = 512


class Relay:
    """Serves each connection with `serve`. `repr` is a status line."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Relay {len(self._tasks)} connections>"

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """For `asyncio.start_server` and its kin."""
        if len(self._tasks) >= _CONNECTIONS:
            writer.close()
            return
        task = asyncio.create_task(self._attend(reader, writer), name="relay")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def attach(self, server: asyncio.Server) -> None:
        self._server = server

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError, EOFError, RuntimeFault):  # The last where the box is gone.
                await self._serve(reader, writer)
        finally:
            writer.close()


def to_dialled(dial: Dial) -> Serve:
    """Carry each connection to one that `dial` opens."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(DIAL_S):
            there = await dial()
        await join((reader, writer), there)

    return serve


async def join(one: Streams, other: Streams) -> None:
    """Carry bytes both ways until both directions have ended. Half-closed stays half-closed. Closes `other`."""
    try:
        async with asyncio.TaskGroup() as directions:
            directions.create_task(_carry(one[0], other[1]))
            directions.create_task(_carry(other[0], one[1]))
    except* (OSError, TimeoutError):
        pass
    finally:
        other[1].close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        async with asyncio.timeout(_IDLE_S):
            chunk = await reader.read(_CHUNK)
            if not chunk:
                break
            writer.write(chunk)
            await writer.drain()
    if writer.can_write_eof() and not writer.is_closing():
        writer.write_eof()
