"""From a config to its harness. The names of all kinds are spoken here and in settings, nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rollwright.wire import UsageError
from rollwright.wire.hints import hint

from .bash import BashConfig, BashHarness
from .chat import ChatHarness
from .claude_code import ClaudeCodeConfig, ClaudeCodeHarness
from .codex import CodexConfig, CodexHarness
from .command import CommandConfig, CommandHarness
from .contract import Harness
from .mini_swe import MiniSweConfig, MiniSweHarness
from .opencode import OpenCodeConfig, OpenCodeHarness
from .oracle import OracleConfig, OracleHarness
from .programs import HarnessConfig


class ChatConfig(HarnessConfig, frozen=True, kw_only=True, tag_field="kind", tag="chat"):
    """A chat loop in this process, with the task's own tools."""


HARNESS_KINDS: Mapping[str, type[HarnessConfig]] = {
    "chat": ChatConfig,
    "oracle": OracleConfig,
    "bash": BashConfig,
    "command": CommandConfig,
    "codex": CodexConfig,
    "claude-code": ClaudeCodeConfig,
    "opencode": OpenCodeConfig,
    "mini-swe-agent": MiniSweConfig,
}
"""Every kind by name, with its settings."""

_MAKERS: Mapping[type[HarnessConfig], Callable[[Any], Harness]] = {
    ChatConfig: lambda _: ChatHarness(),
    OracleConfig: lambda _: OracleHarness(),
    BashConfig: BashHarness,
    CommandConfig: CommandHarness,
    CodexConfig: CodexHarness,
    ClaudeCodeConfig: ClaudeCodeHarness,
    OpenCodeConfig: OpenCodeHarness,
    MiniSweConfig: MiniSweHarness,
}


def make_harness(config: HarnessConfig) -> Harness:
    """The harness that `config` belongs to."""
    maker = _MAKERS.get(type(config))
    if maker is None:
        raise UsageError(f"no harness is made from {type(config).__name__}; known kinds: {', '.join(HARNESS_KINDS)}")
    return maker(config)


def harness_config(kind: str, settings: Mapping[str, Any] | None = None) -> HarnessConfig:
    """The config of `kind` with `settings`; UsageError names what is wrong and the nearest known name."""
    config_type = HARNESS_KINDS.get(kind)
    if config_type is None:
        raise UsageError(f"harness {kind!r} is not known; {hint(kind, HARNESS_KINDS)}")
    given = dict(settings or {})
    known = list(config_type.__struct_fields__)
    for name in given:
        if name not in known:
            raise UsageError(f"harness {kind!r} has no setting {name!r}; {hint(name, known)}")
    try:
        return msgspec.convert({**given, "kind": kind}, config_type)
    except msgspec.ValidationError as error:
        raise UsageError(f"a setting of harness {kind!r} is wrong: {error}") from error
