"""What a person chooses for `rollwright orchestrate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from rollwright.orchestrator.advantages import ADVANTAGE_KINDS, AdvantageConfig, Grpo
from rollwright.orchestrator.concurrency import ConcurrencySettings
from rollwright.orchestrator.filters import FilterConfig
from rollwright.orchestrator.fleet import FleetSettings
from rollwright.orchestrator.packing import PackSettings
from rollwright.orchestrator.plans import StalePolicy
from rollwright.orchestrator.samples import ErrorPolicy
from rollwright.orchestrator.settings import OrchestrateSettings
from rollwright.telemetry.publishing import MetricsConfig
from rollwright.wire import UsageError

from .settings import Choice, RolloutSettings, check_count


class MoreTasks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A further taskset to train on."""

    taskset: str
    """Its name, file.py or package.module:Class."""
    options: dict[str, Any] = {}
    """Its settings."""
    ratio: float = 1.0
    """Its share of the rollouts, measured against the others."""
    group_size: int | None = None
    """Rollouts of one task. None: that of the run."""
    sampler: str = "shuffled"
    """shuffled or curriculum."""


class HeldOut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A taskset to measure the policy by."""

    taskset: str
    """Its name, file.py or package.module:Class."""
    options: dict[str, Any] = {}
    """Its settings."""
    tasks: int | Literal["all"] = 64
    """How many tasks, from the first one on."""
    attempts: int = 1
    """Rollouts per task."""
    every: int = 10
    """Policy versions from one evaluation to the next."""


class TransportSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How batches reach the trainer."""

    kind: Literal["files", "zmq"] = "files"
    """files: it maps them in the output directory. zmq: it connects with the key in OUTPUT/trainer.key."""
    bind: str = "tcp://127.0.0.1:5600"
    """Where trainers connect to, for zmq."""
    keep_batches: int = 0
    """Batches that are kept although the trainer is done with them."""
    sync: bool = True
    """Wait for the disk, so that batches survive a power cut; false is for disks that do not matter."""

    def __post_init__(self) -> None:
        if self.keep_batches < 0:
            raise UsageError(f"transport.keep_batches is {self.keep_batches}; set it to 0 or more")


class MicroBatches(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Micro-batches for the ranks of a trainer."""

    ranks: int = 0
    """Ranks that see different data; 0 leaves samples as they come."""
    max_tokens: int = 32768
    """Tokens of a micro-batch; a longer sample is alone in one."""
    budget_s: float = 0.2
    """Time per step for looking for a better packing."""


class OrchestrateCommand(RolloutSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Roll out groups and make one batch of samples per step for a trainer."""

    tasks: int | Literal["all"] = "all"
    """How many tasks to draw from, from the first one on; all takes every one."""
    output: str = ""
    """Directory for the batches, the checkpoint and metrics.jsonl."""
    resume: bool = False
    """Go on with the run in the output directory."""
    workers: int = 0
    """Worker processes that run the rollouts, behind a broker; 0 runs them in this process."""
    steps: int = 1
    """Batches to make."""
    batch_size: int = 32
    """Rollouts per batch, always exactly so many; with batch_tokens, the most."""
    batch_tokens: int = 0
    """If above 0, a batch has as many rollouts as fit into so many tokens."""
    group_size: int = 8
    """Rollouts of one task, which are each other's baseline."""
    sampler: str = "shuffled"
    """shuffled: each task once per epoch; curriculum: tasks that are solved sometimes come more often."""
    follow: bool = False
    """Wait for the versions that the trainer publishes; without it, batches are made as fast as groups come back."""
    lag: int = 1
    """Steps that rollouts may be ahead of the policy: 0 waits for each version, 1 overlaps training with rollouts."""
    max_staleness: int = 8
    """Most policy versions between the oldest token of a sample and the version that trains it."""
    stale: StalePolicy = StalePolicy.WITHHOLD
    """What happens to a rollout that is too old: withhold it alone, or drop its group with it."""
    spare: float = 0.0
    """Rollouts that run beyond what the steps need, as a share of a batch, so that slow ones hold nobody up."""
    advantage: AdvantageConfig = Grpo()
    """How much better a rollout did; name its kind with --advantage before --help to see its settings."""
    filters: tuple[FilterConfig, ...] = ()
    """What is kept out of the batches, or only counted."""
    errors: ErrorPolicy = ErrorPolicy.DROP
    """What happens to a rollout that failed: drop it, or keep its place with every token masked."""
    pack: MicroBatches = MicroBatches()
    in_flight: ConcurrencySettings = ConcurrencySettings()
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
    sources: tuple[MoreTasks, ...] = ()
    """Further tasksets to train on."""
    evals: tuple[HeldOut, ...] = ()
    """Tasksets to measure the policy by, while it is trained."""
    transport: TransportSettings = TransportSettings()
    fleet: FleetSettings = FleetSettings()
    save_rollouts: bool = False
    """Keep every rollout of the run in OUTPUT/rollouts, to be read later."""
    metrics: MetricsConfig = MetricsConfig()
    """Where numbers over time go."""

    verb: ClassVar[str] = "orchestrate"
    choices: ClassVar[Mapping[str, Choice]] = {
        **RolloutSettings.choices,
        "advantage": Choice(ADVANTAGE_KINDS, "grpo", "advantages"),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("group_size", "--group-size", self.group_size)
        if self.workers < 0:
            raise UsageError(f"workers is {self.workers}; set it to 0 or more")
        if self.evals and not self.follow:
            raise UsageError("evals measure the versions of a trainer; add --follow, or leave them out")
        self.orchestration()

    def orchestration(self) -> OrchestrateSettings:
        """The part that is the orchestrator's own, which also checks it."""
        own = {"pack", "concurrency"}
        names = [name for name in OrchestrateSettings.__struct_fields__ if name not in own]
        pack = self.pack
        return OrchestrateSettings(
            **{name: getattr(self, name) for name in names},
            pack=PackSettings(**msgspec.structs.asdict(pack)) if pack.ranks else None,
            concurrency=self.in_flight,
        )
