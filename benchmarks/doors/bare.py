"""A relay that reads nothing: bytes in, the same bytes out, `python -m benchmarks.doors.bare '{...}'`. What it costs is
what sockets cost, and the least that any interceptor could cost. It speaks the lines of `worker`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import cast
from urllib.parse import urlsplit

import msgspec

from rollwright.telemetry import peak_rss_bytes, rss_bytes, run

from .worker import Figures, Setup


class Near(asyncio.Protocol):
    """The program's end of one connection, which opens the other one with the first request."""

    def __init__(self, engine_url: str) -> None:
        address = urlsplit(engine_url)
        self._address = (address.hostname or "", address.port or 0)
        self._opening: asyncio.Task[object] | None = None
        self.transport: asyncio.WriteTransport | None = None
        self.far: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        if self.far is not None:
            self.far.write(data)
        else:
            loop = asyncio.get_running_loop()
            self._opening = loop.create_task(loop.create_connection(lambda: Far(self, data), *self._address))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.far is not None:
            self.far.close()


class Far(asyncio.Protocol):
    """The engine's end."""

    def __init__(self, near: Near, request: bytes) -> None:
        self._near = near
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._near.far = cast(asyncio.WriteTransport, transport)
        self._near.far.write(self._request)

    def data_received(self, data: bytes) -> None:
        assert self._near.transport is not None
        self._near.transport.write(data)


async def _serve(setup: Setup) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Near(setup.engine_url), "127.0.0.1", 0, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    for number in range(setup.rollouts):
        print(json.dumps({"number": number, "url": f"http://127.0.0.1:{port}", "key": ""}), flush=True)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    before_s = time.process_time()
    while line := await reader.readline():
        if json.loads(line) == "figures":
            cpu_s = time.process_time()
            figures = Figures(cpu_s - before_s, 0.0, 0.0, rss_bytes() / 2**20, peak_rss_bytes() / 2**20, [])
            before_s = cpu_s
            print(json.dumps(msgspec.to_builtins(figures)), flush=True)


if __name__ == "__main__":
    run(_serve(msgspec.json.decode(sys.argv[1], type=Setup)))
