"""What a person chooses for the verbs that roll out. Every field is a promise kept elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from rollwright.engines.config import EngineConfig
from rollwright.harnesses import HARNESS_KINDS, HarnessConfig, Limits
from rollwright.harnesses.registry import ChatConfig
from rollwright.runtimes import RUNTIME_KINDS, PoolConfig, RuntimeConfig, SubprocessConfig
from rollwright.serve.ray.settings import RaySettings
from rollwright.tasks import GroupSettings, Taskset
from rollwright.telemetry.publishing import MetricsConfig
from rollwright.wire import Sampling, UsageError

ALIASES = {
    "-m": "model",
    "-n": "tasks",
    "-r": "rollouts",
    "-c": "concurrency",
    "-o": "output",
    "--engine": "engine.kind",
    "--harness": "harness.kind",
    "--runtime": "runtime.kind",
    "--advantage": "advantage.kind",
}


class Choice(msgspec.Struct, frozen=True):
    """A table whose settings depend on the kind that it names."""

    kinds: Mapping[str, type[msgspec.Struct]]
    default: str
    called: str
    """What things of such a kind are."""


class RolloutSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is rolled out, against which model, in which box."""

    model: str = ""
    """The model's name at the engine. Empty: the engine's kind, which is enough for scripted and local."""
    base_url: str = ""
    """Address of an OpenAI-compatible or Anthropic endpoint: engine.relay.base_url, and the relay engine with it."""
    tasks: int | Literal["all"] = 20
    """How many tasks, from the first one on; all takes every one."""
    seed: int = 0
    """Seed of the order of the tasks, where one is drawn, and of the scripted engine."""
    output: str = ""
    """Directory for the results."""
    dry_run: bool = False
    """Show the resolved settings and the first task; ask no engine, write nothing."""
    json: bool = False
    """Print the result as one line of JSON on stdout; everything else goes to stderr."""
    debug: bool = False
    """Show the traceback of an error."""
    taskset: Taskset = Taskset()
    """Settings of the taskset; name one before --help to see them."""
    engine: EngineConfig = EngineConfig()
    """Where tokens come from."""
    harness: HarnessConfig = ChatConfig()
    """The program that drives the model; name its kind with --harness before --help to see its settings."""
    sampling: Sampling = Sampling()
    """How tokens are drawn; none leaves the choice to the engine."""
    limits: Limits = Limits()
    """What one rollout may spend; none is no limit."""
    runtime: RuntimeConfig = SubprocessConfig()
    """The box that programs run in; name its kind with --runtime before --help to see its settings."""
    pool: PoolConfig = PoolConfig()
    """How boxes are kept for further rollouts, where runtime.persistent is true."""
    group: GroupSettings = GroupSettings()
    """What becomes of rollouts that are scored together when one of them fails."""

    verb: ClassVar[str] = ""
    choices: ClassVar[Mapping[str, Choice]] = {
        "runtime": Choice(RUNTIME_KINDS, "subprocess", "boxes"),
        "harness": Choice(HARNESS_KINDS, "chat", "harnesses"),
    }
    of_the_call: ClassVar[frozenset[str]] = frozenset(
        {"base_url", "output", "resume", "dry_run", "json", "debug", "show"}
    )
    """Settings of one call rather than of the run, and what another setting tells too: not in config.toml."""

    def __post_init__(self) -> None:
        check_count("tasks", "-n", self.tasks)
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}; set it to 0 or more")


class EvalSettings(RolloutSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Evaluate a model on a taskset."""

    rollouts: int = 1
    """Rollouts of each task."""
    concurrency: int = 32
    """Rollouts in flight at once. Tasks that score their rollouts together take one place per group."""
    workers: int = 0
    """Worker processes that run the rollouts, behind a broker; 0 runs them in this process."""
    launcher: Literal["local", "ray"] = "local"
    """Who starts the workers: local makes them processes of this machine, ray puts them on the nodes of a cluster."""
    address: str = ""
    """tcp://HOST:PORT where workers on other machines reach this one, encrypted; PORT 0 takes free ones."""
    advertise: str = ""
    """The host name that they reach it by, where the address is one that only this machine can listen on."""
    ray: RaySettings = RaySettings()
    """How workers are laid out on a Ray cluster."""
    shuffle: bool = False
    """Choose the tasks in an order drawn with the seed, instead of the taskset's own."""
    pass_threshold: float = 1.0
    """A rollout with at least this reward counts as passed in pass@k."""
    output: str = ""
    """Directory of the run. Empty: runs/TASKSET--MODEL--TIME."""
    metrics: MetricsConfig = MetricsConfig()
    """Where numbers over time go."""
    show: int = 0
    """Whole conversations to print at the end."""
    resume: bool = False
    """Go on with the run in the output directory, or else with the latest run of this taskset and model."""

    verb: ClassVar[str] = "eval"
    may_change: ClassVar[frozenset[str]] = frozenset(
        {
            "concurrency",
            "workers",
            "launcher",
            "address",
            "advertise",
            *(f"ray.{name}" for name in RaySettings.__struct_fields__),
            "engine.relay.api_key_env",
            "engine.relay.max_connections",
            "engine.relay.max_concurrency",
            "engine.relay.max_retries",
            "engine.relay.requests_per_minute",
            "engine.relay.tokens_per_minute",
            "engine.relay.connect_timeout_s",
            "engine.relay.queue_timeout_s",
            "engine.local.threads",
            "engine.local.parallel",
            "engine.local.start_timeout_s",
            *(f"metrics.{name}" for name in MetricsConfig.__struct_fields__),
            "runtime.persistent",
            *(f"pool.{name}" for name in PoolConfig.__struct_fields__),
        }
    )
    """Settings that change how fast a run goes and not what comes out: a resumed run may have others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("rollouts", "-r", self.rollouts)
        check_count("concurrency", "-c", self.concurrency)
        if self.workers < 0:
            raise UsageError(f"workers is {self.workers}; set it to 0 or more")
        if not self.workers and (self.launcher != "local" or self.address or self.advertise):
            raise UsageError("there are no workers to start elsewhere; add --workers N")
        check_reachable(self.launcher, self.address, self.advertise)


def check_reachable(launcher: str, address: str, *told: str) -> None:
    """Workers of other machines, and what they are told, need a server that listens there."""
    if not address and (launcher == "ray" or any(told)):
        raise UsageError("other machines reach the server over TCP; add --address tcp://HOST:PORT")


def check_count(name: str, flag: str, value: int | str) -> None:
    if isinstance(value, int) and value < 1:
        raise UsageError(f"{name} ({flag}) is {value}; set it to 1 or more")


def config_of(settings: RolloutSettings, taskset_name: str) -> dict[str, Any]:
    """The run's settings as tables that a later `@ config.toml` reads back. TOML has no null: the word none stands
    for it where None is not what a missing key means."""
    table: dict[str, Any] = msgspec.to_builtins(settings)
    for key in settings.of_the_call:
        table.pop(key, None)
    table = _with_nones(table, settings)
    table["taskset"] = {"name": taskset_name, **table["taskset"]}
    return table


def _with_nones(table: dict[str, Any], struct: msgspec.Struct) -> dict[str, Any]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    shown: dict[str, Any] = {}
    for key, value in table.items():
        inner = getattr(struct, fields[key].name) if key in fields else None
        if isinstance(inner, msgspec.Struct):
            shown[key] = _with_nones(value, inner)
        elif value is None and fields[key].default is not None:
            shown[key] = "none"
        else:
            shown[key] = value
    return shown
