"""Small questions to a box, for checks: shell scripts that any image runs, and what they need. No promises here."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from .contract import Ending, Runtime

PATIENCE_S = 30.0

DAEMONS = "sleep 1000 & a=$!; setsid sleep 1001 & b=$!; echo $a $b;"
"""Leaves two children, one of them in a session of its own, and tells their ids."""


FETCH = """
if command -v curl > /dev/null; then curl -s --max-time 20 'URL'
elif command -v wget > /dev/null; then wget -q -T 20 -O - 'URL'
elif command -v python3 > /dev/null; then
    python3 -c "import urllib.request as r; print(r.urlopen('URL', timeout=20).read().decode(), end='')"
else printf 'nothing here speaks HTTP'; fi
"""
LISTEN = """
if command -v python3 > /dev/null; then python3 -c "
import os, socket, time
server = socket.create_server(('127.0.0.1', 0))
print('listening', flush=True) if os.fork() else time.sleep(1000)"
elif command -v httpd > /dev/null; then httpd -p 127.0.0.1:PORT && echo listening
elif command -v busybox > /dev/null; then busybox httpd -p 127.0.0.1:PORT && echo listening
else echo nothing here can listen; fi
"""
"""Leaves a program that listens on a port, where the box has one that can."""


async def sh(runtime: Runtime, script: str) -> str:
    """Stdout of a shell script in the box."""
    result = await runtime.run(["sh", "-c", script], timeout_s=PATIENCE_S)
    assert result.ending is Ending.EXITED, f"{script!r} ended as {result}"
    return result.text


async def raises(kind: type[BaseException], work: Awaitable[object]) -> None:
    try:
        answer = await work
    except kind:
        return
    raise AssertionError(f"expected {kind.__name__}, got {answer!r}")


async def line_of(read: Callable[[int], Awaitable[bytes]]) -> str:
    """One line, read by single bytes so that nothing after it is taken."""
    line = b""
    async with asyncio.timeout(PATIENCE_S):
        while (byte := await read(1)) not in (b"\n", b""):
            line += byte
    return line.decode()


async def gone(runtime: Runtime, pids: list[str]) -> None:
    assert len(pids) == 2, f"expected two process ids, got {pids}"
    for pid in pids:
        # A zombie that waits for its reaper has ended.
        state = await sh(runtime, f"sed -n 's/^State:[[:space:]]*//p' /proc/{pid}/status 2>/dev/null || true")
        assert state[:1] in ("", "Z", "X"), f"process {pid} is still there: {state}"


@asynccontextmanager
async def served(answer: str) -> AsyncIterator[int]:
    """A server on this host's loopback that gives one answer to everything; the value is its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.0 200 OK\r\nContent-Length: {len(answer)}\r\n\r\n{answer}".encode())
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@contextmanager
def host_secret(name: str) -> Iterator[None]:
    os.environ[name] = secrets.token_hex(16)
    try:
        yield
    finally:
        del os.environ[name]


def in_host_home(name: str) -> bool:
    return Path.home().joinpath(name).exists()
