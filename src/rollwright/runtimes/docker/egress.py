"""The proxy through which a box reaches the hosts it is allowed to reach, and no other.

It speaks what HTTP clients speak to a proxy: CONNECT for TLS, whose bytes it does not look into, and plain requests
with a full address, one per connection. Names are resolved out here; a name on the list is trusted wherever it leads.
Not covered: protocols that know no HTTP proxy.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass

from .relay import DIAL_S, join

_HEAD_LIMIT = 64 << 10
_DEFAULT_PORTS = (80, 443)
_HOP_HEADERS = (b"connection:", b"proxy-connection:", b"proxy-authorization:", b"keep-alive:")
_AUTHORITY = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)(?::(?P<port>\d{1,5}))?\Z")
_ABSOLUTE = re.compile(r"http://(?P<authority>[^/?#]+)(?P<rest>.*)\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Wish:
    """Where a client of the proxy wants to go. `head` is what is sent there first; a tunnel sends nothing."""

    host: str
    port: int
    head: bytes = b""


class AllowList:
    """Which hosts and ports are open: `host`, `*.domain` for its subdomains, either with `:port`."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._exact: set[tuple[str, int]] = set()
        self._below: set[tuple[str, int]] = set()
        for entry in entries:
            wild = entry.startswith("*.")
            host, port = _split(entry[1:] if wild else entry)
            for number in (port,) if port else _DEFAULT_PORTS:
                (self._below if wild else self._exact).add((host, number))

    def admits(self, host: str, port: int) -> bool:
        host = host.lower().rstrip(".")
        return (host, port) in self._exact or any(
            port == open_port and host.endswith(end) for end, open_port in self._below
        )


def read_wish(head: bytes) -> Wish | None:
    """The request at the beginning of a connection; None where it is not one for a proxy."""
    line, _, headers = head.partition(b"\r\n")
    words = line.decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return None
    method, target, version = words
    if method == "CONNECT":
        host, port = _split(target)
        return Wish(host, port or 443) if host else None
    absolute = _ABSOLUTE.match(target)
    if absolute is None:
        return None
    host, port = _split(absolute["authority"])
    rest = absolute["rest"] if absolute["rest"].startswith("/") else "/" + absolute["rest"]
    kept = [each for each in headers.split(b"\r\n") if each and not each.lower().startswith(_HOP_HEADERS)]
    sent = [f"{method} {rest} {version}".encode("latin-1"), *kept, b"Connection: close", b"", b""]
    return Wish(host, port or 80, b"\r\n".join(sent)) if host else None


class Proxy:
    """Serves connections of clients in the box."""

    def __init__(self, allowed: AllowList) -> None:
        self._allowed = allowed

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(DIAL_S):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                return None
            wish = read_wish(head) if len(head) <= _HEAD_LIMIT else None
            if wish is None:
                return await _answer(
                    writer, "400 Bad Request", "this is a proxy; ask it with CONNECT or a full address"
                )
            if not self._allowed.admits(wish.host, wish.port):
                return await _answer(
                    writer, "403 Forbidden", f"{wish.host}:{wish.port} is not on the allow-list of this box"
                )
            try:
                there = await asyncio.open_connection(wish.host.strip("[]"), wish.port)
            except OSError as error:
                return await _answer(writer, "502 Bad Gateway", f"{wish.host}:{wish.port} is not reached: {error}")
        if wish.head:
            there[1].write(wish.head)
        else:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await join((reader, writer), there)
        return None


async def _answer(writer: asyncio.StreamWriter, status: str, why: str) -> None:
    body = f"{why}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


def _split(authority: str) -> tuple[str, int]:
    """Host in lower case, and port or 0; an empty host where the words make no sense or name another user."""
    match = _AUTHORITY.match(authority)
    if match is None or int(match["port"] or 0) > 65535:
        return "", 0
    return match["host"].lower().rstrip("."), int(match["port"] or 0)
