"""What a person chooses about a run of the orchestrator."""

from __future__ import annotations

import msgspec

from rollwright.wire import UsageError


class OrchestrateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How groups become batches."""

    output: str
    """Directory for the batch files and metrics.jsonl. It may exist, but holds no batches of another run."""
    steps: int = 1
    """Batches to make."""
    batch_size: int = 32
    """Rollouts per batch; a multiple of the group size."""
    group_size: int = 8
    """Rollouts of one task, which are each other's baseline."""
    seed: int = 0
    """Seed of the order of the tasks."""
    divide_by_std: bool = False
    """Divide advantages by the standard deviation of their group's rewards."""
    max_groups: int = 64
    """Most groups in flight at once."""
    max_replaced_groups: int = 8
    """Groups per step that may give nothing to train on and be replaced by the next task before the run gives up."""
    group_timeout_s: float = 3600.0
    """A group that takes longer counts as failed."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "group_size", "max_groups"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; set it to 1 or more")
        if self.max_replaced_groups < 0 or self.group_timeout_s <= 0:
            raise UsageError("max_replaced_groups must be 0 or more, and group_timeout_s more than 0")
        if self.batch_size % self.group_size:
            smaller = self.batch_size - self.batch_size % self.group_size
            near = f"{smaller} or {smaller + self.group_size}" if smaller else f"{self.group_size}"
            raise UsageError(
                f"batch_size {self.batch_size} is not a multiple of group_size {self.group_size}; "
                f"set batch_size to {near}"
            )
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}; set it to 0 or more")

    @property
    def groups_per_step(self) -> int:
        return self.batch_size // self.group_size
