"""From a config to its box. The names of all kinds are spoken here and in settings, nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rollwright.wire import UsageError
from rollwright.wire.hints import hint

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
    maker = _MAKERS.get(type(config))
    if maker is None:
        raise UsageError(f"no runtime is made from {type(config).__name__}; known kinds: {', '.join(RUNTIME_KINDS)}")
    return maker(config)


def runtime_config(kind: str, settings: Mapping[str, Any] | None = None) -> RuntimeConfig:
    """The config of `kind` with `settings`; UsageError names what is wrong and the nearest known name."""
    config_type = RUNTIME_KINDS.get(kind)
    if config_type is None:
        raise UsageError(f"runtime {kind!r} is not known; {hint(kind, RUNTIME_KINDS)}")
    given = dict(settings or {})
    known = list(config_type.__struct_fields__)
    for name in given:
        if name not in known:
            raise UsageError(f"runtime {kind!r} has no setting {name!r}; {hint(name, known)}")
    try:
        return msgspec.convert({**given, "kind": kind}, config_type)
    except msgspec.ValidationError as error:
        raise UsageError(f"a setting of runtime {kind!r} is wrong: {error}") from error
