"""What dispatch decides by, what it decides, and what a checkpoint keeps of it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rollwright.wire import RollwrightError, UsageError

from .buffer import Ready
from .groups import Accounts, Landed, Ticket
from .sources import SourcesState

STALE = "stale"
RUN_ENDED = "run_ended"
GROUP_STALE = "group_stale"


class GroupsFailed(RollwrightError):
    """Too many groups in a row gave nothing to train on."""


class StalePolicy(StrEnum):
    WITHHOLD = "withhold"
    """A stale rollout stays out of the batch; the others of its group go on."""
    DROP = "drop"
    """A stale rollout takes its group with it."""


class PlanSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers that dispatch decides by; OrchestrateSettings has their meaning for a person."""

    steps: int
    batch_size: int
    batch_tokens: int = 0
    """If above 0 a batch is whole with so many tokens, and `batch_size` is its largest number of rollouts."""
    follow: bool = False
    """Whether there is a trainer whose versions are awaited."""
    lag: int = 1
    max_staleness: int = 8
    stale: StalePolicy = StalePolicy.WITHHOLD
    spare: float = 0.0
    """Rollouts that are launched beyond what the steps need, as a share of a batch."""
    max_buffered_bytes: int = 8 * 2**30
    max_barren_groups: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if self.lag < 0 or self.max_staleness < self.lag:
            raise UsageError(f"max_staleness {self.max_staleness} must be at least lag {self.lag}, and lag 0 or more")


class Pick(msgspec.Struct, frozen=True):
    """A rollout of a batch."""

    group: int
    member: int
    advantage: float


class Cut(msgspec.Struct, frozen=True):
    """The batch of a step, as the rollouts it is made of, in the order of dispatch."""

    step: int
    picks: tuple[Pick, ...]
    tokens: int
    trained_tokens: int
    newest_version: int
    """The newest policy version that sampled any of it."""
    rewards: tuple[float, ...]
    """Of each pick."""
    staleness: tuple[int, ...]
    """Of each pick, in policy versions."""


class Snapshot(msgspec.Struct, frozen=True):
    """All that a run must not forget, without arrays."""

    step: int
    version: int
    sources: SourcesState
    running: tuple[Ticket, ...]
    ready: tuple[Ready, ...]
    landed: tuple[Landed, ...]
    accounts: Accounts
    caught: dict[str, int]
    baselines: dict[str, float]
