"""The scripted engine in a child process, for those who measure or who must not share a loop with their model.

The settings travel over stdin, never on the command line. The child tells its address in one line on stdout. It lives
no longer than its parent: stdin stays open as the sign of life, and on Linux the kernel is asked to kill it as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import AsyncIterator

import msgspec

from rollwright.wire import EngineUnavailable, UsageError

from .config import ScriptedConfig

_STDERR_LINES = 20


class Start(msgspec.Struct, frozen=True):
    """What the child is told."""

    config: ScriptedConfig
    parent_pid: int


class Started(msgspec.Struct, frozen=True):
    """What the child answers: where it listens, or what is wrong with its settings."""

    port: int = 0
    usage_error: str = ""


class ScriptedProcess:
    """A running child."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, stderr: deque[str]) -> None:
        self._process = process
        self._stderr = stderr
        self.port = port

    def __repr__(self) -> str:
        return f"<ScriptedProcess {self.pid} at {self.base_url}>"

    @property
    def base_url(self) -> str:
        """The root of the host; OpenAI's SDK wants /v1 behind it."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    @property
    def last_words(self) -> str:
        """The newest lines of its stderr."""
        return "\n".join(self._stderr)


@contextlib.asynccontextmanager
async def scripted_process(config: ScriptedConfig, *, start_timeout_s: float = 20.0) -> AsyncIterator[ScriptedProcess]:
    """A scripted engine in its own process, gone when the block ends. UsageError for settings that make no sense,
    EngineUnavailable if it does not come up."""
    # -P: a file of the working directory must not stand in for a module of the library (random.py, types.py, ...).
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "rollwright.engines.scripted"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stderr: deque[str] = deque(maxlen=_STDERR_LINES)
    listening = asyncio.create_task(_listen(process, stderr), name=f"stderr of scripted engine {process.pid}")
    try:
        port = await _start(process, config, stderr, listening, start_timeout_s)
        yield ScriptedProcess(process, port, stderr)
    finally:
        await _end(process, listening)


async def _start(
    process: asyncio.subprocess.Process,
    config: ScriptedConfig,
    stderr: deque[str],
    listening: asyncio.Task[None],
    timeout_s: float,
) -> int:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(timeout_s):
            process.stdin.write(msgspec.json.encode(Start(config, os.getpid())) + b"\n")
            with contextlib.suppress(ConnectionError):
                await process.stdin.drain()
            line = await process.stdout.readline()
            if not line:
                await asyncio.gather(listening, process.wait())
    except TimeoutError:
        told = f"it said: {' | '.join(stderr)}" if stderr else "it said nothing"
        raise EngineUnavailable(f"the scripted engine did not start within {timeout_s:g} s; {told}") from None
    if not line:
        told = " | ".join(stderr) or "it said nothing"
        raise EngineUnavailable(f"the scripted engine died with exit code {process.returncode} while starting: {told}")
    started = msgspec.json.decode(line, type=Started)
    if started.usage_error:
        raise UsageError(started.usage_error)
    return started.port


async def _listen(process: asyncio.subprocess.Process, stderr: deque[str]) -> None:
    """Keep the pipe empty and the newest lines at hand."""
    assert process.stderr is not None
    while chunk := await process.stderr.read(65536):
        stderr.extend(chunk.decode("utf-8", "replace").splitlines()[-_STDERR_LINES:])


async def _end(process: asyncio.subprocess.Process, listening: asyncio.Task[None]) -> None:
    """Kill it: it keeps nothing that a kind end would save. The wait is for the kernel only."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert process.stdin is not None
    process.stdin.close()
    ending = asyncio.ensure_future(asyncio.gather(process.wait(), listening, return_exceptions=True))
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        await ending
        raise
