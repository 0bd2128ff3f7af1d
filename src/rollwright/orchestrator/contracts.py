"""What the orchestrator asks of its neighbours: environments that run groups, a way to the trainer, a source of policy
versions and the engines that are to serve them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from rollwright.wire import Trace

from .batches import Batch
from .concurrency import EngineGauge
from .evals import EvalPlan
from .sources import SourcePlan

TaskT = TypeVar("TaskT")
TaskT_contra = TypeVar("TaskT_contra", contravariant=True)


class GroupRunner(Protocol[TaskT_contra]):
    """A served environment."""

    async def run_group(self, task: TaskT_contra, n: int, *, first_attempt: int = 0) -> list[Trace]:
        """`n` traces, with the attempts from `first_attempt` on. A rollout that failed is a trace that says so; a
        RolloutError means that nothing of the group came back. Cancelling this ends the rollouts."""
        ...

    def cancel_rollout(self, task: TaskT_contra, attempt: int) -> bool:
        """End one rollout of a group; its trace says that it was cancelled. False if it is not running."""
        ...

    async def tell_policy(self, version: int) -> None:
        """The engines serve this version from now on; calls that begin later are marked with it."""
        ...


@dataclass(frozen=True)
class Source(Generic[TaskT]):
    """Tasks to train on, and the environment that runs them."""

    plan: SourcePlan
    runner: GroupRunner[TaskT]
    tasks: Sequence[TaskT]


@dataclass(frozen=True)
class EvalSource(Generic[TaskT]):
    """Tasks to measure the policy by."""

    plan: EvalPlan
    runner: GroupRunner[TaskT]
    tasks: Sequence[TaskT]


AnySource = Source[Any] | EvalSource[Any]


class Shipped(msgspec.Struct, frozen=True):
    """A batch that a crash of ours can no longer take back."""

    path: Path
    bytes: int


class TrainingBatchSender(Protocol):
    """The way to the trainer."""

    async def send(self, batch: Batch) -> Shipped:
        """Returns when the batch would survive a power cut. Never blocks the loop."""
        ...

    async def prune(self, step: int) -> None:
        """Batches up to `step` are in a checkpoint; those of them that the trainer is done with may go."""
        ...


class PolicyVersion(msgspec.Struct, frozen=True):
    """Weights that a trainer has published."""

    version: int
    path: str = ""
    """Where they lie; empty if the engines know without it."""


class PolicyFeed(Protocol):
    """What the trainer publishes."""

    def versions(self) -> AsyncIterator[PolicyVersion]:
        """Each newest version, rising; those that are overtaken before anybody looked are left out."""
        ...


class Engines(Protocol):
    """The engines that sample for this run."""

    async def serve(self, policy: PolicyVersion) -> None:
        """Make every engine sample by this version; returns when they do."""
        ...

    async def gauge(self) -> EngineGauge | None:
        """How busy they are; None where they do not tell."""
        ...
