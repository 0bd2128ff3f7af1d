"""An environment of the settings of a verb: what workers are told, and one that workers serve to this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from rollwright.engines.config import EngineConfig
from rollwright.serve import BrokerSettings, EnvClient, EnvironmentSpec, serving
from rollwright.serve.environments import HOST
from rollwright.serve.ray.settings import RaySettings

from .settings import RolloutSettings


def environment_spec(
    settings: RolloutSettings, taskset_name: str, engine: EngineConfig, *, tokens: bool = False
) -> EnvironmentSpec:
    runtime, harness = msgspec.to_builtins(settings.runtime), msgspec.to_builtins(settings.harness)
    return EnvironmentSpec(
        taskset=taskset_name,
        options=msgspec.to_builtins(settings.taskset),
        model=settings.model,
        engine=engine,
        sampling=settings.sampling,
        limits=settings.limits,
        harness=harness.pop("kind"),
        harness_settings=harness,
        runtime=runtime.pop("kind"),
        runtime_settings=runtime,
        pool=settings.pool,
        group=settings.group,
        return_tokens=tokens,
    )


@asynccontextmanager
async def served(
    spec: EnvironmentSpec,
    *,
    workers: int,
    concurrency: int,
    launcher: str = "local",
    ray: RaySettings = RaySettings(),  # noqa: B008 - frozen
    address: str = "",
    advertise: str = "",
) -> AsyncIterator[EnvClient]:
    """The environment behind a broker with so many workers, which share `concurrency` rollouts at once."""
    capacity = -(-concurrency // workers)
    settings = BrokerSettings(workers=workers, capacity=capacity, host=HOST, options=spec.encode())
    options = msgspec.json.encode(ray).decode()
    opened = serving(settings, address=address, advertise=advertise, launcher=launcher, launcher_options=options)
    async with opened as server, EnvClient(server.address) as client:
        yield client
