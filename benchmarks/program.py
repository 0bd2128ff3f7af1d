"""A program that talks to a model over HTTP and sends its whole history each time: the client of the benchmarks. It
keeps what it has written, so that a turn costs it little more than sending."""

from __future__ import annotations

import asyncio
import json
import re
import time
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


class Program:
    """One conversation over one connection, laid out as the OpenAI SDK does it."""

    def __init__(self, url: str, key: str) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname, address.port
        self._head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nAuthorization: Bearer {key}\r\n"
            "Content-Type: application/json\r\nAccept: application/json\r\nUser-Agent: benchmark\r\nContent-Length: "
        ).encode()
        self._history = bytearray(b'{"messages":[')
        self._io: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.sent_bytes = 0

    def say(self, *messages: dict) -> None:
        for message in messages:
            self._history += b"" if self._history.endswith(b"[") else b","
            self._history += json.dumps(message, separators=(",", ":")).encode()

    async def ask(self) -> dict:
        """The model's next message, added to the conversation as the program writes it."""
        reader = await self._send(_AFTER + b"}")
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        assert length is not None, head
        body = await reader.readexactly(int(length[1]))
        assert head.startswith(b"HTTP/1.1 200"), body[:500]
        message = json.loads(body)["choices"][0]["message"]
        self.say(message)
        return message

    async def stream(self) -> list[float]:
        """How late each piece of a streamed answer is, in seconds."""
        reader = await self._send(b'],"model":"m","stream":true,"stream_options":{"include_usage":true}}')
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        late, done = [], False
        while (line := await reader.readline()) != b"0\r\n":
            assert line, "the stream was cut"
            stamp = _STAMP.search(line)
            if stamp:
                late.append(time.monotonic() - float(stamp[1]))
            done = done or line.startswith(b"data: [DONE]")
        assert done
        await reader.readline()
        return late

    async def _send(self, after: bytes) -> asyncio.StreamReader:
        if self._io is None:
            self._io = await asyncio.open_connection(self._host, self._port, limit=2**22)
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
