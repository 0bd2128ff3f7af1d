"""The scripted engine in a child process, for those who measure or who must not share a loop with their model.

The settings travel over stdin, never on the command line. The child tells its address in one line on stdout, and lives
no longer than its parent (`engines.child`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator

import msgspec

from rollwright.engines.child import Child
from rollwright.wire import EngineUnavailable, UsageError

from .config import ScriptedConfig

_LOG_LINES = 20


class Start(msgspec.Struct, frozen=True):
    """What the child is told."""

    config: ScriptedConfig
    parent_pid: int


class Started(msgspec.Struct, frozen=True):
    """What the child answers: where it listens, or what is wrong with its settings."""

    port: int = 0
    usage_error: str = ""


class ScriptedProcess(Child):
    """A child that serves a script."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__(process, "scripted engine", log_lines=_LOG_LINES)
        self.port = 0

    def __repr__(self) -> str:
        return f"<ScriptedProcess {self.pid} at {self.base_url}>"

    @property
    def base_url(self) -> str:
        """The root of the host; OpenAI's SDK wants /v1 behind it."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self, config: ScriptedConfig, timeout_s: float) -> None:
        """Hand over the settings and learn the port."""
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._exchange(msgspec.json.encode(Start(config, os.getpid())) + b"\n")
                if not line:
                    await self.died()
        except TimeoutError:
            text = f"the scripted engine did not start within {timeout_s:g} s; {self.last_words}"
            raise EngineUnavailable(text) from None
        if not line:
            code = self._process.returncode
            raise EngineUnavailable(f"the scripted engine died with exit code {code} while starting; {self.last_words}")
        started = msgspec.json.decode(line, type=Started)
        if started.usage_error:
            raise UsageError(started.usage_error)
        self.port = started.port

    async def _exchange(self, line: bytes) -> bytes:
        """The line that it answers; b"" if it died instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line)
        with contextlib.suppress(ConnectionError):
            await self._process.stdin.drain()
        return await self._process.stdout.readline()


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
    engine = ScriptedProcess(process)
    try:
        await engine.start(config, start_timeout_s)
        yield engine
    finally:
        await engine.end()
