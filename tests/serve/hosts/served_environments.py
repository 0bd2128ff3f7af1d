"""Real environments for workers, where a puppet would prove nothing."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rollwright.engines.function import FunctionEngine
from rollwright.rollouts import Environment
from rollwright.serve.environments import EnvironmentHost
from rollwright.serve.hosting import Host
from rollwright.tasks import Task, Taskset
from rollwright.wire import ModelCall, ModelReply


class NoTasks(Taskset, frozen=True):
    def tasks(self) -> list[Task]:
        return []


class StuckEngine(FunctionEngine):
    """Is asked and never answers; leaves a note when it is asked, and when the call is cancelled."""

    def __init__(self, directory: Path) -> None:
        super().__init__(lambda call: "ok")
        self._directory = directory

    async def complete(self, call: ModelCall) -> ModelReply:
        (self._directory / "asked").touch()
        try:
            await asyncio.Event().wait()
        finally:
            (self._directory / "let-go").touch()
        return await super().complete(call)


@asynccontextmanager
async def stuck(options: str) -> AsyncIterator[Host]:
    """A real environment whose engine does not answer."""
    engine = StuckEngine(Path(json.loads(options)["directory"]))
    tasks = {"plain": Task(id="plain", prompt="Go.")}
    async with Environment(NoTasks()).serving(engine, "stuck") as serving:
        yield EnvironmentHost(tasks, engine, serving, lambda: None, prove=False)
