"""Programs that talk to a model over HTTP: the clients of the benchmarks. One sends its whole history each time; it
keeps what it has written, so that a turn costs it little more than sending. The other listens to streams and does next
to nothing else, so that what it measures is not itself."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any, cast
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_STAMP = re.compile(rb'"content":"(\d+\.\d+) "')
_TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "A tool.", "parameters": {"type": "object", "properties": {}}},
    }
    for name in ("look", "click", "type", "scroll")
]
_AFTER = b'],"model":"m","tools":' + json.dumps(_TOOLS).encode()


def _head(url: str, key: str) -> bytes:
    host = urlsplit(url).netloc
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
        "Content-Type: application/json\r\nAccept: application/json\r\nUser-Agent: benchmark\r\nContent-Length: "
    ).encode()


class Program:
    """One conversation over one connection, laid out as the OpenAI SDK does it."""

    def __init__(self, url: str, key: str) -> None:
        self._address = urlsplit(url)
        self._head = _head(url, key)
        self._history = bytearray(b'{"messages":[')
        self._io: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.sent_bytes = 0

    def say(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            self._history += b"" if self._history.endswith(b"[") else b","
            self._history += json.dumps(message, separators=(",", ":")).encode()

    async def ask(self) -> dict[str, Any]:
        """The model's next message, added to the conversation as the program writes it."""
        reader = await self._send(_AFTER + b"}")
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        assert length is not None, head
        body = await reader.readexactly(int(length[1]))
        assert head.startswith(b"HTTP/1.1 200"), body[:500]
        message: dict[str, Any] = json.loads(body)["choices"][0]["message"]
        self.say(message)
        return message

    async def _send(self, after: bytes) -> asyncio.StreamReader:
        if self._io is None:
            self._io = await asyncio.open_connection(self._address.hostname, self._address.port, limit=2**22)
        reader, writer = self._io
        size = len(self._history) + len(after)
        self.sent_bytes += size
        writer.write(b"%b%d\r\n\r\n" % (self._head, size))
        writer.write(bytes(self._history))
        writer.write(after)
        await writer.drain()
        return reader

    def close(self) -> None:
        if self._io is not None:
            self._io[1].close()


_ASK = (
    b'{"messages":[{"role":"user","content":"Say something."}],"model":"m","stream":true,'
    b'"stream_options":{"include_usage":true}}'
)


class Listener(asyncio.Protocol):
    """One connection, over which one stream after the other is asked for."""

    def __init__(self, url: str, key: str) -> None:
        self._address = urlsplit(url)
        self._request = b"%b%d\r\n\r\n%b" % (_head(url, key), len(_ASK), _ASK)
        self._transport: asyncio.WriteTransport | None = None
        self._late: list[float] = []
        self._rest = b""
        self._done = False
        self._ended: asyncio.Future[None] | None = None

    async def stream(self) -> list[float]:
        """How late each piece of a streamed answer is, in seconds."""
        loop = asyncio.get_running_loop()
        if self._transport is None:
            await loop.create_connection(lambda: self, self._address.hostname or "", self._address.port or 0)
        assert self._transport is not None
        self._late = []
        self._ended = loop.create_future()
        self._transport.write(self._request)
        await self._ended
        return self._late

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        data = self._rest + data
        whole, _, self._rest = data.rpartition(b"\n")
        self._late += [now - float(stamp) for stamp in _STAMP.findall(whole)]
        self._done = self._done or b"data: [DONE]" in whole
        if self._done and whole.endswith(b"0\r\n\r") and self._ended is not None:
            self._done = False
            self._ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(ConnectionError("the stream was cut"))
