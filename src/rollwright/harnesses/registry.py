"""From a config to its harness. The names of all kinds are spoken here and in settings, nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rollwright.wire.kinds import config_of, maker_of

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
    made: Harness = maker_of("harness", _MAKERS, HARNESS_KINDS, config)(config)
    return made


def harness_config(kind: str, settings: Mapping[str, Any] | None = None) -> HarnessConfig:
    """The config of `kind` with `settings`; UsageError names what is wrong and the nearest known name."""
    return config_of("harness", HARNESS_KINDS, kind, settings)
