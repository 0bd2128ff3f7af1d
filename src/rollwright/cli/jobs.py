"""What a verb is about to do, found out without asking an engine or writing a file; `--dry-run` shows it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from rollwright.engines import Engine
from rollwright.engines.config import EngineConfig
from rollwright.tasks import Task, Taskset, load_tasks
from rollwright.traces.toml import write_toml
from rollwright.wire import Message

from .resolve import Resolved
from .settings import RolloutSettings, config_of

S = TypeVar("S", bound=RolloutSettings)


class Job(msgspec.Struct, Generic[S], frozen=True):
    """Settings, the tasks they choose, and the place of the results."""

    settings: S
    taskset_name: str
    taskset: Taskset
    tasks: Sequence[Task]
    available: int
    """Tasks that the set has."""
    place: Path
    engine: EngineConfig
    config: dict[str, Any]
    """What config.toml holds."""


def prepare(resolved: Resolved[S], place: Path, *, shuffle: bool = False, tokens: bool = False) -> Job[S]:
    settings = resolved.settings
    every = load_tasks(settings.taskset)
    return Job(
        settings=settings,
        taskset_name=resolved.taskset_name,
        taskset=settings.taskset,
        tasks=chosen(every, settings.tasks, seed=settings.seed if shuffle else None),
        available=len(every),
        place=place,
        engine=resolved.engine_config(tokens=tokens),
        config=config_of(settings, resolved.taskset_name),
    )


def chosen(tasks: Sequence[Task], count: int | str, *, seed: int | None) -> list[Task]:
    """The first `count` tasks, in the taskset's order or in one drawn with the seed."""
    order = list(tasks)
    if seed is not None:
        random.Random(seed).shuffle(order)
    return order if isinstance(count, str) else order[:count]


async def prove(engine: Engine, config: EngineConfig) -> None:
    """Ask the engine once before any work is begun for it. The scripted one is our own child and answers when it is
    open; a probe would only use up the first line of its script."""
    if config.kind != "scripted":
        await engine.probe()


def dry_run(job: Job[S], rollouts: int) -> str:
    """What would happen."""
    first = job.tasks[0]
    spoken = "\n".join(_said(message) for message in first.opening())
    return (
        f"{write_toml(job.config)}\n"
        f"# {len(job.tasks)} of {job.available} tasks, {rollouts} rollouts in all\n"
        f"# engine {job.engine.kind}, model {job.settings.model}\n"
        f"# results would go to {job.place}\n"
        f"# the first task, {first.id}:\n{_commented(spoken)}"
    )


def _said(message: Message) -> str:
    return f"[{message.role}] {message.text or '(no text)'}"


def _commented(text: str) -> str:
    # The whole output is a settings file that can be used as it is.
    return "\n".join(f"#   {line}" for line in text.splitlines())
