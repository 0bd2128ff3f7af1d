"""An environment as something that workers serve: from settings that travel to rollouts that run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from rollwright.engines import Engine, EngineConfig, open_engine
from rollwright.engines.journey import Obituary
from rollwright.engines.relay import RelayEngine
from rollwright.harnesses import Limits, make_harness
from rollwright.harnesses.registry import harness_config
from rollwright.rollouts import Environment, Serving
from rollwright.runtimes import PoolConfig, runtime_config
from rollwright.tasks import GroupSettings, Task, load_tasks, make_taskset
from rollwright.telemetry import MemoryTrimmer
from rollwright.wire import Sampling, Trace, UsageError, WireError

from .hosting import Each, Host, HostLost
from .protocol import Ending, Job, amendments

HOST = f"{__name__}:environment_host"


class EnvironmentSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a worker needs to know to serve an environment."""

    taskset: str
    """Its name, as on the command line."""
    options: dict[str, Any] = {}
    """Its settings."""
    model: str
    engine: EngineConfig = EngineConfig()
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    harness: str = "chat"
    """Its kind."""
    harness_settings: dict[str, Any] = {}
    runtime: str = "subprocess"
    """Its kind."""
    runtime_settings: dict[str, Any] = {}
    pool: PoolConfig = PoolConfig()
    group: GroupSettings = GroupSettings()
    return_tokens: bool = False

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


@asynccontextmanager
async def environment_host(options: str) -> AsyncIterator[Host]:
    """The host of an `EnvironmentSpec`, given as JSON."""
    try:
        spec = msgspec.json.decode(options, type=EnvironmentSpec)
    except msgspec.DecodeError as error:
        raise UsageError(f"the settings of the served environment are wrong: {error}") from error
    taskset = make_taskset(spec.taskset, spec.options)
    tasks = {task.id: task for task in await asyncio.to_thread(load_tasks, taskset)}
    environment = Environment(
        taskset,
        harness=make_harness(harness_config(spec.harness, spec.harness_settings)),
        runtime=runtime_config(spec.runtime, spec.runtime_settings),
        limits=spec.limits,
        pool=spec.pool,
        group=spec.group,
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(MemoryTrimmer())
        engine = await stack.enter_async_context(open_engine(spec.engine, spec.model))
        serving = await stack.enter_async_context(
            environment.serving(engine, spec.model, sampling=spec.sampling, return_tokens=spec.return_tokens)
        )
        obituary = engine.obituary if isinstance(engine, RelayEngine) else lambda: None
        yield EnvironmentHost(tasks, engine, serving, obituary, prove=spec.engine.kind != "scripted")


class EnvironmentHost:
    def __init__(
        self, tasks: dict[str, Task], engine: Engine, serving: Serving, obituary: Obituary, *, prove: bool
    ) -> None:
        self._tasks = tasks
        self._engine = engine
        self._serving = serving
        self._obituary = obituary
        self._prove = prove
        self._in_flight = 0
        self._failed: dict[str, int] = {}

    async def probe(self) -> None:
        # The scripted engine is the worker's own child and answers when it is open; a probe would use up a line of it.
        if self._prove:
            await self._engine.probe()

    def cancel(self, job: Job, position: int) -> bool:
        task = self._tasks.get(job.task_id)
        if task is None or not 0 <= position < len(job.attempts):
            return False
        return self._serving.cancel_rollout(task, job.attempts[position])

    def tell_policy(self, version: int) -> None:
        self._serving.policy_version = version

    async def run(self, job: Job, positions: Sequence[int], each: Each) -> Ending:
        task = self._tasks.get(job.task_id)
        if task is None:
            raise WireError(f"task {job.task_id!r} is not in the taskset that is served here")
        by_attempt = {job.attempts[position]: position for position in positions}
        before: dict[int, Trace] = {}

        def on_trace(trace: Trace) -> None:
            if trace.failure is not None and (words := self._obituary()):
                raise HostLost(words)
            before[by_attempt[trace.attempt]] = trace
            self._note(trace)
            each(by_attempt[trace.attempt], trace)

        self._in_flight += len(positions)
        try:
            attempts = [job.attempts[position] for position in positions]
            after = await self._serving.run_attempts(task, attempts, job.earlier, on_trace)
        except ExceptionGroup as several:
            # Rollouts of a group fail together when one of them finds that the host is lost.
            raise next((error for error in several.exceptions if isinstance(error, HostLost)), several) from None
        finally:
            self._in_flight -= len(positions)
        return amendments(positions, [before[position] for position in positions], after)

    def _note(self, trace: Trace) -> None:
        if trace.failure is not None:
            layer = f"failed_{trace.failure.layer.value}"
            self._failed[layer] = self._failed.get(layer, 0) + 1

    def vitals(self) -> dict[str, float]:
        pool = self._serving.pool
        stats = msgspec.structs.asdict(pool.stats()) if pool is not None else {}
        numbers = {f"pool_{name}": float(value) for name, value in stats.items() if isinstance(value, int | float)}
        return {
            "rollouts": float(self._in_flight),
            # Rollouts that wait for a box; a worker takes no more than it runs, so nothing else waits in it.
            "queued": numbers.get("pool_waiting", 0.0),
            **dict(self._failed),
            **numbers,
            **self._bytes(),
        }

    def _bytes(self) -> dict[str, float]:
        """What is held in memory on behalf of rollouts, and how much may be."""
        images, interceptor = self._engine.images, self._serving.interceptor
        held = {"image_bytes": float(images.memory_bytes), "image_budget_bytes": float(images.budget_bytes)}
        if interceptor is not None:
            held["body_bytes"] = float(interceptor.held_bytes)
            held["body_budget_bytes"] = float(interceptor.config.max_bytes_in_flight)
        return held
