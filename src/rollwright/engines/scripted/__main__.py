"""The child process of `process`: settings from stdin, address to stdout, alive while stdin is open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

import msgspec

from rollwright.engines.child import belong_to
from rollwright.wire import UsageError

from .process import Start, Started


def main() -> int:
    line = sys.stdin.buffer.readline()
    if not line:
        return 0
    start = msgspec.json.decode(line, type=Start)
    belong_to(start.parent_pid)
    # Policies and solvers of the working directory are found, after everything that is installed.
    sys.path.append(os.getcwd())
    try:
        _run(start)
    except UsageError as error:
        _tell(Started(usage_error=str(error)))
        return 2
    return 0


def _run(start: Start) -> None:
    if sys.platform == "win32":
        asyncio.run(_serve(start))
    else:
        import uvloop

        uvloop.run(_serve(start))


async def _serve(start: Start) -> None:
    from .server import ScriptedServer

    async with ScriptedServer(start.config) as server:
        _tell(Started(port=server.port))
        await _stdin_closed()


async def _stdin_closed() -> None:
    """Ends with the parent, or when the parent wants it: whatever comes in is thrown away."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(65536):
        pass
    transport.close()


def _tell(started: Started) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(started) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
