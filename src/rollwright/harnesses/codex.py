"""Codex, which speaks the responses dialect. Its settings travel on its command line; the key in the environment."""

from __future__ import annotations

from typing import Any

from rollwright.runtimes.provision import NpmProgram
from rollwright.traces.toml import toml_value

from .agents import AgentConfig, AgentHarness, Start
from .contract import Door

_KEY = "ROLLWRIGHT_KEY"
_TOOLS_KEY = "ROLLWRIGHT_TOOLS_KEY"
_RETRIES = 1
_IDLE_MS = 3_600_000
_TOOL_S = 3600.0
_TOOLS_START_S = 60.0


class CodexConfig(AgentConfig, frozen=True, kw_only=True, tag_field="kind", tag="codex"):
    """OpenAI's Codex, without its terminal."""


class CodexHarness(AgentHarness):
    kind = "codex"
    version = "0.166.0"
    takes_tools = True

    def __init__(self, config: CodexConfig | None = None) -> None:
        super().__init__(config or CodexConfig())

    @classmethod
    def npm_program(cls, platform: str) -> NpmProgram:
        return NpmProgram("@openai/codex", f"{cls.version}-{platform}", "vendor/*/bin/codex")

    def start(self, door: Door, model: str, system: str, prompt: str) -> Start:
        settings: dict[str, Any] = {
            "model": model,
            "model_provider": "rollwright",
            "model_providers.rollwright.name": "rollwright",
            "model_providers.rollwright.base_url": f"{door.url}/v1",
            "model_providers.rollwright.env_key": _KEY,
            "model_providers.rollwright.wire_api": "responses",
            # The engine's client tries again by itself, and a model may think for long.
            "model_providers.rollwright.request_max_retries": _RETRIES,
            "model_providers.rollwright.stream_max_retries": _RETRIES,
            "model_providers.rollwright.stream_idle_timeout_ms": _IDLE_MS,
            "shell_environment_policy.exclude": [_KEY, _TOOLS_KEY],
            # What the vendor's servers would do is not there.
            "web_search": "disabled",
            "features.plugins": False,
            "features.unbounded_connection_retries": False,
            "analytics.enabled": False,
            "check_for_update_on_startup": False,
        }
        if system:
            settings["developer_instructions"] = system
        env = {_KEY: door.key}
        if door.tools_url:
            settings |= _tools(door)
            env[_TOOLS_KEY] = door.tools_key
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={toml_value(value)}")]
        words += ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return Start(("exec", *words, "-"), env, prompt)


def _tools(door: Door) -> dict[str, Any]:
    """Where it finds its tools. It does not begin without them, and asks its model only when it knows them all."""
    server = {
        "url": door.tools_url,
        "bearer_token_env_var": _TOOLS_KEY,
        "required": True,
        "startup_readiness": "catalog",
        "startup_timeout_sec": _TOOLS_START_S,
        "tool_timeout_sec": _TOOL_S,
    }
    return {f"mcp_servers.rollwright.{name}": value for name, value in server.items()}
