"""An engine that does next to nothing, in a process of its own: `python -m benchmarks.ticking '{...}'`. A stream is so
many pieces at a steady pace, each of which is the time at which it was sent. It reads no request."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count

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


async def _serve(pace: Pace) -> None:
    numbers = count()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                if b'"stream":true' in body[:200] or b'"stream":true' in body[-400:]:
                    await _stream(writer, pace)
                else:
                    number = next(numbers)
                    answer = (_WHOLE % (number, number)).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=2**24, backlog=1024)
    print(json.dumps(server.sockets[0].getsockname()[1]), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    # Whoever still listens has heard enough.
    os._exit(0)


async def _stream(writer: asyncio.StreamWriter, pace: Pace) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    writer.write(_CHUNKED)
    for number in range(pace.chunks):
        await asyncio.sleep(began + (number + 1) * pace.interval_s - loop.time())
        _chunk(writer, _PIECE % b"%.6f " % time.monotonic())
    _chunk(writer, _LAST)
    writer.write(b"0\r\n\r\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


@asynccontextmanager
async def ticking(pace: Pace) -> AsyncIterator[str]:
    """The address of a fresh engine."""
    argv = [sys.executable, "-m", "benchmarks.ticking", msgspec.json.encode(pace).decode()]
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
