"""From a config to its box. The names of all kinds are spoken here and in settings, nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rollwright.wire.kinds import config_of, maker_of

from .contract import Runtime, RuntimeConfig
from .docker import DockerConfig
from .modal import ModalConfig
from .prime.config import PrimeConfig
from .sandbox.config import SandboxConfig
from .subprocess import SubprocessConfig, SubprocessRuntime


def _docker(config: DockerConfig) -> Runtime:
    from .docker.runtime import DockerRuntime

    return DockerRuntime(config)


def _modal(config: ModalConfig) -> Runtime:
    from .modal.runtime import ModalRuntime

    return ModalRuntime(config)


def _prime(config: PrimeConfig) -> Runtime:
    from .prime.runtime import PrimeRuntime

    return PrimeRuntime(config)


def _sandbox(config: SandboxConfig) -> Runtime:
    from .sandbox.runtime import SandboxRuntime

    return SandboxRuntime(config)


RUNTIME_KINDS: Mapping[str, type[RuntimeConfig]] = {
    "subprocess": SubprocessConfig,
    "sandbox": SandboxConfig,
    "docker": DockerConfig,
    "prime": PrimeConfig,
    "modal": ModalConfig,
}
"""Every kind by name, with its settings."""

_MAKERS: Mapping[type[RuntimeConfig], Callable[[Any], Runtime]] = {
    SubprocessConfig: SubprocessRuntime,
    SandboxConfig: _sandbox,
    DockerConfig: _docker,
    PrimeConfig: _prime,
    ModalConfig: _modal,
}


def make_runtime(config: RuntimeConfig) -> Runtime:
    """A box of the kind that `config` belongs to, not started."""
    made: Runtime = maker_of("runtime", _MAKERS, RUNTIME_KINDS, config)(config)
    return made


def runtime_config(kind: str, settings: Mapping[str, Any] | None = None) -> RuntimeConfig:
    """The config of `kind` with `settings`; UsageError names what is wrong and the nearest known name."""
    return config_of("runtime", RUNTIME_KINDS, kind, settings)
