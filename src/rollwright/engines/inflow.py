"""The body of a streamed response, read within the callback that brings its bytes.

The HTTP library opens, reuses and reads connections; what is added here is that a connection says when bytes have come,
so that nobody has to wake up and look. A listener that is full is left alone: the bytes stay in the library's buffer,
which stops reading from the socket when it is full itself. Nothing here retries, and nothing is translated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

from rollwright.dialects import StreamReader
from rollwright.wire import End, Event

from .chunks import whole_chunks
from .contract import Ear
from .silence import Silence


class Conduit(ResponseHandler):
    """One connection.

    Nearly every packet of a stream is one whole chunk of HTTP. Such a packet is not shown to the library: it goes
    straight to the stream, in a third of the time. What is not shown leaves the library's parser where it was, between
    two chunks; whatever is cut in another way, and the end, are for the parser.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._inflow: Inflow | None = None
        self._at_head = False
        """The next packet begins a response."""
        self._between = False
        """The parser stands between two chunks, as far as we can tell."""

    def set_response_params(self, **params: Any) -> None:
        self._at_head, self._between = True, False
        super().set_response_params(**params)

    def attach(self, inflow: Inflow, *, chunked: bool) -> None:
        self._inflow = inflow
        self._between = self._between and chunked

    def detach(self, inflow: Inflow) -> None:
        """Idempotent; another stream that goes over this connection by now is not touched."""
        if self._inflow is inflow:
            self._inflow = None

    def data_received(self, data: bytes) -> None:
        inflow = self._inflow
        if inflow is not None and self._between and not inflow.held:
            body = whole_chunks(data)
            if body is not None:
                # Nearly every packet.
                inflow.take(body)
                return
        if inflow is None:
            if self._at_head and data:
                self._at_head, self._between = False, _is_head(data)
            elif data:
                self._between = self._between and whole_chunks(data) is not None
            super().data_received(data)
            return
        if data:
            self._between = self._between and whole_chunks(data) is not None
            super().data_received(data)
            inflow.arrived()
        else:
            # Reading from the library's buffer makes it look for more.
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        inflow, self._inflow = self._inflow, None
        super().connection_lost(exc)
        if inflow is not None:
            inflow.lost()


class Conduits(aiohttp.TCPConnector):
    """Connections of that kind."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # The library makes its connections by this; `Inflow` finds out at once if it no longer does.
        self._factory = cast(Any, partial(Conduit, loop=self._loop))


class Deaf(Exception):
    """The listener failed, not the stream. Its cause is how."""


class TooLong(Exception):
    """More bytes came than the stream may have."""


class Inflow:
    """One stream on its way to one listener."""

    def __init__(self, response: aiohttp.ClientResponse, reader: StreamReader, ear: Ear, max_bytes: int) -> None:
        self.received_bytes = 0
        self.told = False
        """The listener has heard something."""
        self._response = response
        self._content = response.content
        self._reader = reader
        self._ear = ear
        self._max_bytes = max_bytes
        self._events: Iterator[Event] = iter(())
        """What was read and not told, because the listener is full."""
        self.held = False
        """The listener is full, or nobody listens any more."""
        self._lost = False
        self._end: End | None = None
        self._error: Exception | None = None
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the stream has ended or failed, or the listener is full."""

    async def run(self, first_s: float, then_s: float, left_s: float) -> End:
        """How the stream ended. TimeoutError if it begins after `first_s`, is then silent for `then_s`, or is not over
        after `left_s`. Errors of the connection and of the reader come as they are; those of the listener, as Deaf."""
        conduit = self._conduit()
        with Silence(first_s, then_s, left_s, self._expired) as self._silence:
            try:
                if conduit is not None:
                    conduit.attach(self, chunked=_is_chunked(self._response))
                self.arrived()
                while self._end is None:
                    await self._news
                    if self._error is not None:
                        raise self._error
                    if self._end is None:
                        await self._resume()
                return self._end
            finally:
                self.held, self._error = True, None
                if conduit is not None:
                    conduit.detach(self)

    def take(self, data: bytes) -> None:
        """Read what comes next, and tell it: one event, nearly always."""
        try:
            self.received_bytes += len(data)
            if self.received_bytes > self._max_bytes:
                raise TooLong
            self._silence.heard()
            events = self._reader.feed(data)
            if events:
                self._tell(iter(events))
        # Whatever fails here would be lost in the loop; it belongs to whoever awaits the stream.
        except Exception as error:
            self._fail(error)

    def arrived(self) -> None:
        """The library has read something."""
        if not self.held:
            try:
                self._read()
            # As above.
            except Exception as error:
                self._fail(error)

    def lost(self) -> None:
        """Nothing more will be read."""
        self._lost = True
        self.arrived()

    def _conduit(self) -> Conduit | None:
        """The connection; None if all that it brought is in the buffer already and it serves another call."""
        connection = self._response.connection
        conduit = connection.protocol if connection is not None else None
        assert conduit is None or isinstance(conduit, Conduit)
        return conduit

    def _read(self) -> None:
        content = self._content
        while data := content.read_nowait():
            self.take(data)
            if self.held:
                return
        if content.is_eof():
            self._reader.close()
            raise aiohttp.ClientPayloadError("the stream has no end")
        if self._lost:
            raise aiohttp.ServerDisconnectedError

    def _tell(self, events: Iterator[Event]) -> bool:
        """Whether nothing may be told for now, or ever."""
        hear = self._ear.hear
        for event in events:
            if type(event) is End:
                self._end = event
                self._stop()
                return True
            self.told = True
            try:
                more = hear(event)  # type: ignore[arg-type]  # All others are deltas.
            except Exception as error:
                raise Deaf from error
            if not more:
                self._events = events
                self._silence.rest()
                self._stop()
                return True
        return False

    async def _resume(self) -> None:
        """Go on after the listener was full."""
        await self._ear.ready()
        self._news = asyncio.get_running_loop().create_future()
        self.held = False
        self._silence.heard()
        if not self._tell(self._events):
            self.arrived()

    def _stop(self) -> None:
        self.held = True
        if not self._news.done():
            self._news.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._end is None:
            self._error = error
        self._stop()

    def _expired(self) -> None:
        self._fail(TimeoutError("the stream is silent"))


def _is_head(data: bytes) -> bool:
    """Whether `data` is the head of a response, with nothing or with whole chunks after it."""
    end = data.find(b"\r\n\r\n") + 4
    return end >= 4 and (end == len(data) or whole_chunks(data[end:]) is not None)


def _is_chunked(response: aiohttp.ClientResponse) -> bool:
    headers = response.headers
    return headers.get("Transfer-Encoding", "").lower() == "chunked" and "Content-Encoding" not in headers
