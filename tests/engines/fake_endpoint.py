"""A real endpoint on loopback that does what the test tells it, request by request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from rollwright.dialects import dialect_named
from rollwright.wire import End, Finish, ModelCall, ModelReply, TextDelta, Usage, assistant, user

Step = Callable[[web.Request], Awaitable[web.StreamResponse]]

CALL = ModelCall("m", (user("hi"),))
ANSWER = ModelReply(assistant("hello there"), Finish.STOP, Usage(3, 2), model="m")
CHAT = dialect_named("chat")


def answer(status: int = 200, body: bytes | None = None, **headers: str) -> Step:
    """A whole answer."""
    text = CHAT.write_reply(ANSWER, CALL) if body is None else body

    async def step(request: web.Request) -> web.StreamResponse:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, body=text, headers=fields, content_type="application/json")

    return step


def failing(status: int, message: str = "no", **headers: str) -> Step:
    return answer(status, CHAT.write_error(status, message), **headers)


def stream_bytes() -> list[bytes]:
    writer = CHAT.stream_writer(CALL)
    events = [TextDelta("hello "), TextDelta("there"), End(Finish.STOP, Usage(3, 2), model="m")]
    return [writer.open(), *(writer.write(event) for event in events)]


def streaming(pieces: list[bytes] | None = None, then: Step | None = None) -> Step:
    """A streamed answer, and what follows instead of its proper end."""

    async def step(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in stream_bytes() if pieces is None else pieces:
            await response.write(piece)
        if then is not None:
            await then(request)
        return response

    return step


async def cut(request: web.Request) -> web.StreamResponse:
    """Reset the connection."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


class Endpoint:
    """Plays `script` in order; after its end, every request gets `default`."""

    def __init__(self) -> None:
        self.script: list[Step] = []
        self.default: Step = answer()
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.asked = asyncio.Event()
        """Set when the first request has been read."""
        self.gone = asyncio.Event()
        """Set when a client left while `stall` waited."""
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        self.asked.set()
        step = self.script.pop(0) if self.script else self.default
        return await step(request)

    async def stall(self, request: web.Request) -> web.StreamResponse:
        """Silence until the client leaves."""
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.gone.set()
            raise
        return web.Response()


class Naps:
    """Time as a parameter: pauses are written down and take one turn of the loop."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        await asyncio.sleep(0)
