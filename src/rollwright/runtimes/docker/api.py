"""A thin client of the engine's HTTP API: calls that answer JSON, and streams that take a connection over.

Calls go through aiohttp. A stream is a plain connection on which we write the one request by hand, since the program's
stdin has to be closed while its output is still read, and no HTTP client lets go of a connection in that state.
Paths carry no API version: engines answer those with their own newest, and old numbers are refused by new engines.
Not covered: TLS and ssh addresses.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from rollwright.wire import RuntimeFault, RuntimeLost, UsageError

CALL_S = 60.0
_ERROR_LIMIT = 4096
_BUFFER = 256 << 10
_PART = 256 << 10
_PLACES = ("/var/run/docker.sock", "/run/podman/podman.sock")


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine listens: a unix socket, or a host and port."""

    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def local(self) -> bool:
        """The engine most likely runs on this machine and sees the same files."""
        return bool(self.path)

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.path else f"tcp://{self.host}:{self.port}"


def address_of(words: str = "") -> Address:
    """The engine that `words` name, else DOCKER_HOST, else the first usual place that has a socket."""
    words = words or os.environ.get("DOCKER_HOST", "") or _usual_place()
    if words.startswith("/"):
        return Address(path=words)
    scheme, _, rest = words.partition("://")
    if scheme == "unix" and rest.startswith("/"):
        return Address(path=rest)
    host, _, port = rest.rstrip("/").rpartition(":")
    if scheme in ("tcp", "http") and host and port.isdigit():
        return Address(host=host, port=int(port))
    raise UsageError(f"engine address {words!r} is not understood; give unix:///path or tcp://host:port")


def _usual_place() -> str:
    own = os.path.join(os.environ.get("XDG_RUNTIME_DIR", ""), "podman/podman.sock")
    return next((place for place in (*_PLACES, own) if Path(place).is_socket()), _PLACES[0])


@dataclass(frozen=True, slots=True)
class Reply:
    """What the engine answered, with the JSON in it opened."""

    status: int
    value: Any


class Engine:
    """One engine. Whoever makes it closes it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        connector = aiohttp.UnixConnector(address.path, limit=64) if address.path else aiohttp.TCPConnector(limit=64)
        base = "http://engine" if address.path else f"http://{address.host}:{address.port}"
        self._session = aiohttp.ClientSession(base, connector=connector)

    async def close(self) -> None:
        await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        data: bytes | None = None,
        allow: tuple[int, ...] = (),
        timeout_s: float = CALL_S,
    ) -> Reply:
        """One request. Statuses from 400 raise, unless `allow` names them; a container that is gone is RuntimeLost."""
        if self._session.closed:
            raise RuntimeLost("the connection to the engine is closed: its box was stopped")
        headers = {"Content-Type": "application/json"} if data is None else {"Content-Type": "application/x-tar"}
        payload = _in_parts(data) if data is not None else None if body is None else msgspec.json.encode(body)
        try:
            async with self._session.request(
                method,
                path,
                params=dict(query or {}),
                data=payload,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as response:
                status, text = response.status, await response.read()
        except TimeoutError as error:
            raise RuntimeFault(
                f"the engine at {self.address} did not answer {method} {path} in {timeout_s:g} s"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise RuntimeFault(f"no answer from the engine at {self.address}: {error}") from error
        if status >= 400 and status not in allow:
            raise _refusal(f"{method} {path}", status, text)
        return Reply(status, _opened(text))

    async def take_over(self, path: str, body: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send one request and keep its connection as a stream in both directions."""
        reader, writer = await self._connect()
        payload = msgspec.json.encode(body)
        head = f"POST {path} HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\n"
        head += f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: {len(payload)}\r\n\r\n"
        try:
            async with asyncio.timeout(CALL_S):
                writer.write(head.encode() + payload)
                answer = await reader.readuntil(b"\r\n\r\n")
                status = int(answer.split(b" ", 2)[1])
                # Docker says that it switches protocols, Podman just begins.
                if status not in (101, 200):
                    raise _refusal(f"POST {path}", status, await reader.read(_ERROR_LIMIT))
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            writer.close()
            raise RuntimeFault(f"the engine at {self.address} opened no stream for {path}: {error}") from error
        except BaseException:
            writer.close()
            raise
        return reader, writer

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        at = self.address
        try:
            async with asyncio.timeout(CALL_S):
                if at.path:
                    return await asyncio.open_unix_connection(at.path, limit=_BUFFER)
                return await asyncio.open_connection(at.host, at.port, limit=_BUFFER)
        except (OSError, TimeoutError) as error:
            raise RuntimeFault(f"no answer from the engine at {at}: {error}") from error


async def _in_parts(data: bytes) -> AsyncIterator[bytes]:
    """A large body in pieces, so that other work gets its turn in between."""
    for at in range(0, len(data), _PART):
        yield data[at : at + _PART]


def _opened(text: bytes) -> Any:
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(text)
    return text.decode("utf-8", "replace")


def _refusal(what: str, status: int, text: bytes) -> RuntimeFault:
    value = _opened(text[-_ERROR_LIMIT:].rpartition(b"\r\n\r\n")[2])
    message = value.get("message", "") if isinstance(value, dict) else str(value)
    kind = (
        RuntimeLost
        if status in (404, 409) and what.startswith("POST /containers/") and "/exec" in what
        else RuntimeFault
    )
    return kind(f"the engine refused {what} with {status}: {message.strip()}")
