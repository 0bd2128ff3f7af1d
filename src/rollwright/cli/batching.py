"""What a person chooses for `rollwright orchestrate`."""

from __future__ import annotations

from typing import ClassVar, Literal

from rollwright.orchestrator.settings import OrchestrateSettings

from .settings import RolloutSettings


class OrchestrateCommand(RolloutSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Roll out groups and write one batch of samples per step."""

    tasks: int | Literal["all"] = "all"
    """How many tasks to draw from, from the first one on; all takes every one."""
    output: str = ""
    """Directory for the batch files and metrics.jsonl. It may exist, but holds no batches of another run."""
    steps: int = 1
    """Batches to make."""
    batch_size: int = 32
    """Rollouts per batch; a multiple of the group size."""
    group_size: int = 8
    """Rollouts of one task, which are each other's baseline."""
    divide_by_std: bool = False
    """Divide advantages by the standard deviation of their group's rewards."""
    max_groups: int = 64
    """Most groups in flight at once."""
    max_replaced_groups: int = 8
    """Groups per step that may give nothing to train on and be replaced by the next task before the run gives up."""
    group_timeout_s: float = 3600.0
    """A group that takes longer counts as failed."""

    verb: ClassVar[str] = "orchestrate"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.orchestration()

    def orchestration(self) -> OrchestrateSettings:
        """The part that is the orchestrator's own, which also checks it."""
        names = OrchestrateSettings.__struct_fields__
        return OrchestrateSettings(**{name: getattr(self, name) for name in names})
