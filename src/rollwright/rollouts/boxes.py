"""The box of one rollout: one of its own that is gone afterwards, or one that is leased from a pool."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from rollwright.harnesses import Limits
from rollwright.runtimes import Runtime, RuntimeConfig, RuntimePool, make_runtime, runtime_config
from rollwright.tasks import Task
from rollwright.traces import LiveTrace
from rollwright.wire import Failure, RolloutError, RuntimeFault, TaskBroken, UsageError

log = logging.getLogger("rollwright.rollouts")


def config_for(task: Task, config: RuntimeConfig) -> RuntimeConfig:
    """The run's config with what `task` sets over it. A task that names another kind is asked for all of it."""
    try:
        wanted = dict(task.runtime_settings())
    except RolloutError:
        raise
    except Exception as error:  # The border to the author's code.
        raise TaskBroken(f"runtime_settings of {task.id!r} raised {type(error).__name__}: {error}") from error
    return _over(task.id, config, wanted) if wanted else config


def limits_for(task: Task, limits: Limits) -> Limits:
    """The run's limits with what `task` sets over them."""
    try:
        wanted = dict(task.limit_settings())
        return msgspec.convert({**msgspec.structs.asdict(limits), **wanted}, Limits) if wanted else limits
    except Exception as error:  # The border to the author's code.
        raise TaskBroken(f"the limits of {task.id!r} make no sense: {type(error).__name__}: {error}") from error


def _over(task_id: str, config: RuntimeConfig, wanted: Mapping[str, Any]) -> RuntimeConfig:
    given: dict[str, Any] = msgspec.to_builtins(config)
    if wanted.get("kind", given["kind"]) != given["kind"]:
        given = {"persistent": config.persistent}
    merged = {**given, **wanted}
    kind = merged.pop("kind", None) or given["kind"]
    try:
        return runtime_config(str(kind), merged)
    except UsageError as error:
        raise TaskBroken(f"the box that {task_id!r} asks for makes no sense: {error}") from error


class Ground:
    """What all rollouts of a group stand on, found out once: their limits, and the box that each asks for. Equal wishes
    are the pool's hint that one warm box is as good as another."""

    def __init__(self, task: Task, limits: Limits, runtime: RuntimeConfig) -> None:
        self.task = task
        self.limits = limits
        self.broken: Failure | None = None
        """Why none of them can begin."""
        self._runtime = runtime
        self._box_config: RuntimeConfig | None = None
        try:
            self.limits = limits_for(task, limits)
        except TaskBroken as error:
            self.broken = Failure.of(error)

    def box_config(self) -> RuntimeConfig:
        if self._box_config is None:
            self._box_config = config_for(self.task, self._runtime)
        return self._box_config


@asynccontextmanager
async def fresh_box(ground: Ground, within_s: float) -> AsyncIterator[Runtime]:
    """A box of its own, gone afterwards. That it could not be cleaned away is logged: the rollout in it is done."""
    runtime = make_runtime(ground.box_config())
    try:
        await _started(runtime, within_s)
        yield runtime
    finally:
        try:
            await runtime.stop()
        except RolloutError as error:
            log.warning("%s was not cleaned away: %s", runtime.name, error)


@asynccontextmanager
async def leased_box(ground: Ground, pool: RuntimePool, trace: LiveTrace) -> AsyncIterator[Runtime]:
    """A box of the pool's, whose deadlines are the pool's own: waiting for it is not the rollout's time (law 6)."""
    lease = pool.lease(ground.box_config())
    async with lease as runtime:
        trace.queued(lease.waited_s)
        trace.info |= {"pooled": True, "lease": lease.number, "box_uses": lease.uses}
        yield runtime


async def _started(runtime: Runtime, within_s: float) -> None:
    try:
        async with asyncio.timeout(within_s) as clock:
            await runtime.start()
    except OSError as error:  # TimeoutError is one of them.
        if clock.expired():
            raise RuntimeFault(f"making the box took longer than {within_s:g} s") from error
        raise RuntimeFault(f"{runtime.name} did not start: {error}") from error
