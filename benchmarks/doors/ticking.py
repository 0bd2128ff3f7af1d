"""An engine that does next to nothing, in a process of its own: `python -m benchmarks.doors.ticking '{...}'`. A stream
is so many pieces at a steady pace, each of which is the time at which it was sent. It reads no request."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import cast

import msgspec

from rollwright.telemetry import run

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_PIECE = b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
_LAST = (
    b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"id":"c","model":"m","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":9}}\n\ndata: [DONE]\n\n'
)
_CALL = '{"id":"call_%d","type":"function","function":{"name":"look","arguments":"{\\"at\\": \\"the page\\"}"}}'
_WHOLE = (
    '{"id":"c","model":"m","choices":[{"index":0,"finish_reason":"tool_calls","message":{"role":"assistant",'
    '"content":"Step %d.","tool_calls":[' + _CALL + ']}}],"usage":{"prompt_tokens":100,"completion_tokens":20}}'
)


class Pace(msgspec.Struct):
    chunks: int = 100
    interval_s: float = 0.01


class Ticker(asyncio.Protocol):
    """One connection. A timer per piece, and nothing that waits."""

    numbers = count()

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._received = bytearray()
        self._head = self._length = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._length:
            self._head = self._received.find(b"\r\n\r\n") + 4
            found = _LENGTH.search(self._received, 0, self._head)
            self._length = self._head + int(found[1]) if found else 0
        if self._length and len(self._received) >= self._length:
            body = self._received[self._head : self._length]
            self._received.clear()
            self._length = 0
            self._answer(b'"stream":true' in body[:400] or b'"stream":true' in body[-400:])

    def _answer(self, streamed: bool) -> None:
        assert self._transport is not None
        if streamed:
            self._transport.write(_CHUNKED)
            self._loop.call_later(self._pace.interval_s, self._tick, self._loop.time(), 1)
            return
        number = next(self.numbers)
        answer = (_WHOLE % (number, number)).encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))

    def _tick(self, began: float, number: int) -> None:
        if self._transport is None:
            return
        self._transport.write(_chunk(_PIECE % b"%.6f " % time.monotonic()))
        if number == self._pace.chunks:
            self._transport.write(_chunk(_LAST) + b"0\r\n\r\n")
        else:
            self._loop.call_at(began + (number + 1) * self._pace.interval_s, self._tick, began, number + 1)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _serve(pace: Pace) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Ticker(pace), "127.0.0.1", 0, backlog=1024)
    print(json.dumps(server.sockets[0].getsockname()[1]), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    # Whoever still listens has heard enough.
    os._exit(0)


@asynccontextmanager
async def ticking(pace: Pace) -> AsyncIterator[str]:
    """The address of a fresh engine."""
    argv = [sys.executable, "-m", "benchmarks.doors.ticking", msgspec.json.encode(pace).decode()]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, env={**os.environ})
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{json.loads(await process.stdout.readline())}"
    finally:
        process.stdin.close()
        await process.wait()


if __name__ == "__main__":
    run(_serve(msgspec.json.decode(sys.argv[1], type=Pace)))
