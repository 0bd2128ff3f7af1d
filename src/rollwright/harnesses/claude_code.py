"""Claude Code, which speaks the messages dialect. Its settings travel in the environment."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rollwright.runtimes import ExecResult, Runtime
from rollwright.runtimes.provision import NpmProgram

from .agents import AgentConfig, AgentHarness, Start
from .contract import Door
from .programs import trouble_of
from .shells import bash_in

_TOOLS_KEY = "ROLLWRIGHT_TOOLS_KEY"
_TOOLS_SHOWN = {"ENABLE_TOOL_SEARCH": "false", "MCP_CONNECTION_NONBLOCKING": "0"}
"""Else it hides tools behind a search of its own, and asks its model before it has heard which tools there are."""
_QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
}
_TRUST = {"IS_SANDBOX": "1"}
"""It runs what the model says without asking, also as root: the box is what confines it."""


class ClaudeCodeConfig(AgentConfig, frozen=True, kw_only=True, tag_field="kind", tag="claude-code"):
    """Anthropic's Claude Code, without its terminal."""


class ClaudeCodeHarness(AgentHarness):
    kind = "claude-code"
    version = "2.1.325"
    takes_tools = True

    def __init__(self, config: ClaudeCodeConfig | None = None) -> None:
        super().__init__(config or ClaudeCodeConfig())

    @classmethod
    def npm_program(cls, platform: str) -> NpmProgram:
        return NpmProgram(f"@anthropic-ai/claude-code-{platform}", cls.version, "claude")

    def start(self, door: Door, model: str, system: str, prompt: str) -> Start:
        words = ["-p", "--model", model, "--dangerously-skip-permissions", "--output-format", "json"]
        if system:
            words += ["--append-system-prompt", system]
        env = {"ANTHROPIC_BASE_URL": door.url, "ANTHROPIC_API_KEY": door.key, **_QUIET, **_TRUST}
        if door.tools_url:
            # It fills in the variable itself, so the key is not on its command line.
            auth = {"Authorization": f"Bearer ${{{_TOOLS_KEY}}}"}
            server = {"type": "http", "url": door.tools_url, "headers": auth}
            words += ["--strict-mcp-config", "--mcp-config", json.dumps({"mcpServers": {"rollwright": server}})]
            env |= {_TOOLS_KEY: door.tools_key, **_TOOLS_SHOWN}
        return Start(tuple(words), env, prompt)

    async def equip(self, runtime: Runtime) -> Mapping[str, str]:
        """It runs no command where it finds neither bash nor zsh."""
        return await bash_in(runtime)

    def trouble(self, result: ExecResult) -> str:
        """Its last line tells the result; it also says there what it could not do, whatever its exit code is."""
        try:
            told = json.loads(result.stdout.splitlines()[-1])
            failed, said = bool(told.get("is_error")), str(told.get("result") or told.get("subtype"))
        except (ValueError, IndexError, AttributeError):
            return trouble_of(result)
        return said if failed else trouble_of(result)
