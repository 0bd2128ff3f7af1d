"""Every rollout of a run, kept to be read: a run directory per source, as an evaluation leaves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from rollwright.rollouts import Recorder
from rollwright.traces import RunDirectory
from rollwright.wire import Trace

from .groups import Ticket


class Archive:
    """Made by `archive`."""

    def __init__(self, directory: Path, stack: AsyncExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._open: dict[str, tuple[RunDirectory, Recorder]] = {}
        self._opening = asyncio.Lock()

    async def keep(self, ticket: Ticket, traces: Sequence[Trace]) -> None:
        """Returns when they are on disk. A rollout that is there already, from before a crash, is not written twice."""
        run, recorder = await self._recorder(ticket.source)
        fresh = [trace for trace in traces if trace.key not in run.done]
        if fresh:
            await recorder.record(fresh)

    async def _recorder(self, source: str) -> tuple[RunDirectory, Recorder]:
        async with self._opening:
            if source not in self._open:
                run = await asyncio.to_thread(_opened, self._directory / source.replace("/", "-"), source)
                self._stack.callback(run.close)
                self._open[source] = run, await self._stack.enter_async_context(Recorder(run))
        return self._open[source]


@asynccontextmanager
async def archive(directory: Path) -> AsyncIterator[Archive]:
    async with AsyncExitStack() as stack:
        yield Archive(directory, stack)


def _opened(path: Path, source: str) -> RunDirectory:
    config = {"source": source}
    return RunDirectory.resume(path, config) if (path / "config.toml").exists() else RunDirectory.create(path, config)
