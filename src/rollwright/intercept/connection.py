"""Connections of programs. HTTP is read by aiohttp; what we add is knowing at once that a client is gone, a bound on
how many there are, and errors in a shape that SDKs understand."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from rollwright.dialects import DIALECTS

from .delivery import Answer, Outlet

log = logging.getLogger("rollwright.intercept")

MAX_HEADERS = 128
MAX_HEADER_BYTES = 16384
"""Of one line. Agents send long ones: trace contexts, lists of beta features."""
_LINGER_S = 1.0
"""How long the rest of a refused body is read and thrown away, so that its sender gets to see the refusal."""


class Asked(web.BaseRequest):
    """One request, and what to do if its client leaves before it is answered."""

    on_left: Callable[[], object] | None = None
    outlet: Outlet | None = None
    """Set once it is answered by a stream."""

    @property
    def begun(self) -> bool:
        """Part of the answer is on its way, so there can be no other."""
        return self.outlet is not None and self.outlet.begun

    def forget(self) -> None:
        """It was served. The connection outlives it and must not keep what hangs on it."""
        self.on_left = self.outlet = None
        if isinstance(self.protocol, Line):
            self.protocol.asked = None


class Line(RequestHandler):
    """One connection."""

    __slots__ = ("asked",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked: Asked | None = None

    def connection_lost(self, exc: BaseException | None) -> None:
        asked, self.asked = self.asked, None
        super().connection_lost(exc)
        if asked is not None and asked.on_left is not None:
            asked.on_left()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """HTTP that makes no sense, or a bug of ours. The connection is closed after it."""
        if isinstance(exc, HttpProcessingError):
            text = f"this is not a request: {' '.join(exc.message.split())[:200]}"
            return Answer(DIALECTS["chat"].write_error(status, text), status, close=True)
        log.error("a request was not served because of a bug", exc_info=exc)
        if request.transport is None or (isinstance(request, Asked) and request.begun):
            raise ConnectionResetError("no other answer can be given on this connection")
        return Answer(DIALECTS["chat"].write_error(status, "the interceptor failed"), status, close=True)


class Switchboard(web.Server):
    """The listening side: makes a Line for each connection, up to a number of them."""

    def __init__(self, handler: Any, max_connections: int, idle_timeout_s: float) -> None:
        super().__init__(
            handler,
            request_factory=self._make_asked,
            access_log=None,
            keepalive_timeout=idle_timeout_s,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            max_headers=MAX_HEADERS,
            lingering_time=_LINGER_S,
            # A few bytes may inflate to gigabytes, on the loop. No agent compresses what it sends to loopback.
            auto_decompress=False,
        )
        self._max_connections = max_connections
        self.turned_away = 0

    def __call__(self) -> RequestHandler:
        return Line(self, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._connections) > self._max_connections:
            self.turned_away += 1
            transport.abort()

    def _make_asked(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Asked:
        asked = Asked(message, payload, protocol, writer, task, self._loop)
        protocol.asked = asked
        return asked
