"""Answers, written straight to the connection.

The heads of our answers are the same every time, so they are put together here and not from a table of headers. What a
stream writes in one turn of the loop leaves in one system call. A client that is gone is written to in vain and without
an error: whether its call goes on without it is decided elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from rollwright.dialects import KEEPALIVE, StreamWriter
from rollwright.engines.chunks import chunk_of
from rollwright.wire import Delta, Event

from .exchange import Exchange

_ONE_WRITE_BYTES = 2**16
_LAST_CHUNK = b"0\r\n\r\n"
_STREAM_FIELDS = b"Content-Type: text/event-stream\r\nCache-Control: no-cache\r\n"


class Answer(web.StreamResponse):
    """A whole answer: one head, one body, JSON unless it says otherwise."""

    def __init__(
        self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None, *, close: bool = False
    ) -> None:
        # Nothing of the base class is used, so nothing of it is set up.
        self._answer = body
        self._code = status
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        self._closes = close

    @property
    def status(self) -> int:
        return self._code

    @property
    def keep_alive(self) -> bool:
        return not self._closes

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        transport = request.transport
        if transport is None:
            return None
        self._closes = self._closes or not request.keep_alive
        last = "Connection: close\r\n" if self._closes else ""
        head = b"%bContent-Length: %d\r\n%b\r\n" % (
            _status_line(self._code),
            len(self._answer),
            f"{self._fields}{last}".encode("latin-1"),
        )
        if request.method == "HEAD":
            transport.write(head)
        elif len(self._answer) < _ONE_WRITE_BYTES:
            transport.write(head + self._answer)
        else:
            transport.write(head)
            transport.write(self._answer)
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """All was written."""


class Outlet(web.StreamResponse):
    """A stream of events to one client. The head leaves with the first event, so until then the call may still end in
    an ordinary error; a client that has waited for long gets the head and a comment instead."""

    def __init__(
        self,
        request: web.BaseRequest,
        writer: StreamWriter,
        keepalive_s: float,
        drain_timeout_s: float,
        driven: Exchange | None = None,
    ) -> None:
        self._request = request
        self._protocol = request.protocol
        self._writer = writer
        self._driven = driven
        """The call that is told here first, and by others who follow it."""
        self._chunked = request.version >= (1, 1)
        self._closes = not self._chunked or not request.keep_alive
        self._keepalive_s = keepalive_s
        self._drain_timeout_s = drain_timeout_s
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._written_at = -1.0
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(keepalive_s, self._tick)
        self._pending: list[bytes] = []
        """Written in this turn of the loop."""
        self._pending_bytes = 0
        self._head_sent = False
        self._quick = False
        """Whether each event is a chunk from now on, and nothing else."""
        self.begun = False

    @property
    def keep_alive(self) -> bool:
        return not self._closes

    def hear(self, delta: Delta) -> bool:
        """Deliver it. Whether the client takes what is written for it."""
        data = self._writer.write(delta)
        now = self._loop.time()
        if self._quick and data and not self._pending and self._written_at != now:
            # Nearly every piece of a stream; the same as below, in one step.
            transport = self._protocol.transport
            if transport is not None:
                transport.write(chunk_of(data))
                self._written_at = now
        else:
            self._write(data if self.begun else self._begin() + data)
        driven = self._driven
        if driven is not None and driven.followers:
            driven.grown()
        return not self._protocol.writing_paused

    async def ready(self) -> None:
        """Wait until the client has taken most of it. One that does not is hung up on, and one that is gone is ready:
        whoever cares was told."""
        try:
            async with asyncio.timeout(self._drain_timeout_s):
                await self._request.writer.drain()
        except ConnectionError:
            return
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()

    def put(self, event: Event) -> None:
        data = self._writer.write(event)
        self._write(data if self.begun else self._begin() + data)

    def fail(self, message: str) -> None:
        """End the stream as the dialect tells an error."""
        data = self._writer.error(message)
        self._write(data if self.begun else self._begin() + data)

    def close(self) -> None:
        """Nothing is written by itself from now on. Idempotent. The connection keeps its last answer until the next
        one, and must not keep the call with it."""
        self._driven = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        self.close()
        if self.begun:
            data = b"".join(self._pending)
            self._pending.clear()
            self._send(data, _LAST_CHUNK)

    def _begin(self) -> bytes:
        """The bytes that the dialect begins with. The head goes before them."""
        self.begun = True
        return self._writer.open()

    def _write(self, data: bytes) -> None:
        """The first event of a turn of the loop leaves at once, what follows in the same turn together at its end: a
        system call costs as much as all the rest of an event."""
        if self._written_at != self._loop.time() and not self._pending:
            # The first of a turn, whose time stands still in loops that gather.
            self._send(data)
            return
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes > _ONE_WRITE_BYTES:
            # An engine that never waits must not fill the memory.
            self._flush()
        elif len(self._pending) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._send(data)

    def _send(self, data: bytes, tail: bytes = b"") -> None:
        transport = self._protocol.transport
        if transport is None or not (data or tail):
            return
        if self._chunked:
            data = chunk_of(data) + tail if data else tail
        if not self._head_sent:
            self._head_sent, self._quick = True, self._chunked
            data = self._head() + data
        if data:
            transport.write(data)
            self._written_at = self._loop.time()

    def _head(self) -> bytes:
        coding = b"Transfer-Encoding: chunked\r\n" if self._chunked else b""
        last = b"Connection: close\r\n" if self._closes else b""
        return b"HTTP/1.1 200 OK\r\n%b%b%b\r\n" % (_STREAM_FIELDS, coding, last)

    def _tick(self) -> None:
        silent_s = self._loop.time() - max(self._written_at, self._began_at)
        # A hair less than the interval still counts: timers of some loops come a little early.
        if silent_s >= 0.99 * self._keepalive_s:
            self._write(KEEPALIVE if self.begun else self._begin() + KEEPALIVE)
            silent_s = 0.0
        self._timer = self._loop.call_later(max(self._keepalive_s - silent_s, 0.001), self._tick)


@cache
def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Overloaded" if status == 529 else "Unknown"
    return f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\n".encode("ascii")
