"""What a person chooses about a run of the orchestrator."""

from __future__ import annotations

import msgspec

from rollwright.wire import UsageError

from .advantages import AdvantageConfig, Grpo
from .concurrency import ConcurrencySettings
from .filters import FilterConfig
from .packing import PackSettings
from .plans import PlanSettings, StalePolicy
from .samples import ErrorPolicy


class OrchestrateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How groups become batches."""

    output: str
    """Directory for the batches, the checkpoint and metrics.jsonl. A run that is there is gone on with."""
    steps: int = 1
    """Batches to make."""
    batch_size: int = 32
    """Rollouts per batch, always exactly so many; with batch_tokens, the most."""
    batch_tokens: int = 0
    """If above 0, a batch has as many rollouts as fit into so many tokens."""
    seed: int = 0
    """Seed of the order of the tasks."""
    lag: int = 1
    """Steps that rollouts may be ahead of the policy: 0 waits for each version, 1 overlaps training with rollouts."""
    max_staleness: int = 8
    """Most policy versions between the oldest token of a sample and the version that trains it."""
    stale: StalePolicy = StalePolicy.WITHHOLD
    """What happens to a rollout that is too old: withhold it alone, or drop its group with it."""
    spare: float = 0.0
    """Rollouts that run beyond what the steps need, as a share of a batch, so that slow ones hold nobody up."""
    advantage: AdvantageConfig = Grpo()
    filters: tuple[FilterConfig, ...] = ()
    errors: ErrorPolicy = ErrorPolicy.DROP
    """What happens to a rollout that failed: drop it, or keep its place with every token masked."""
    pack: PackSettings | None = None
    """Sort samples into micro-batches for the ranks of a trainer."""
    concurrency: ConcurrencySettings = ConcurrencySettings()
    eval_seats: int = 32
    """Rollouts of evaluations in flight at once, besides those of training."""
    max_buffered_mb: int = 8192
    """Finished rollouts that wait for their batch, by the size of their samples."""
    max_landing_mb: int = 2048
    """Rollouts that have come back and are not in their files yet; beyond it no further group is begun."""
    durable: bool = True
    """Wait for the disk before a finished group counts, so that it survives a power cut and not only a crash."""
    max_barren_groups: int = 64
    """Groups in a row that may give nothing to train on before the run gives up."""
    group_timeout_s: float = 3600.0
    """A group that takes longer counts as failed."""
    version_timeout_s: float = 3600.0
    """How long to wait for a policy version that nothing can go on without."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "eval_seats", "max_buffered_mb", "max_landing_mb"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; set it to 1 or more")
        for name in ("batch_tokens", "seed", "lag", "spare", "max_barren_groups"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} is {getattr(self, name)}; set it to 0 or more")
        if not self.group_timeout_s > 0 or not self.version_timeout_s > 0:
            raise UsageError("group_timeout_s and version_timeout_s must be more than 0")
        self.plan(follow=True)

    def plan(self, *, follow: bool) -> PlanSettings:
        """What dispatch decides by, with a trainer whose versions are followed or without one."""
        return PlanSettings(
            steps=self.steps,
            batch_size=self.batch_size,
            batch_tokens=self.batch_tokens,
            follow=follow,
            lag=self.lag,
            max_staleness=self.max_staleness,
            stale=self.stale,
            spare=self.spare,
            max_buffered_bytes=self.max_buffered_mb * 2**20,
            max_barren_groups=self.max_barren_groups,
            seed=self.seed,
        )
