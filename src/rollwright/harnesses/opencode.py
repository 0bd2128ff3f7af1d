"""OpenCode, which speaks chat completions. Its settings travel in the environment, as one JSON object."""

from __future__ import annotations

import json
from typing import Any

from rollwright.runtimes.provision import NpmProgram

from .agents import AgentConfig, AgentHarness, Start
from .contract import Door

_KEY = "ROLLWRIGHT_KEY"
_TOOLS_KEY = "ROLLWRIGHT_TOOLS_KEY"
_QUIET = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_SHARE": "1",
}


class OpenCodeConfig(AgentConfig, frozen=True, kw_only=True, tag_field="kind", tag="opencode"):
    """OpenCode, without its terminal."""


class OpenCodeHarness(AgentHarness):
    kind = "opencode"
    version = "1.18.33"
    takes_tools = True

    def __init__(self, config: OpenCodeConfig | None = None) -> None:
        super().__init__(config or OpenCodeConfig())

    @classmethod
    def npm_program(cls, platform: str) -> NpmProgram:
        # The other build for this processor takes instructions that not every machine has.
        build = f"opencode-{platform}-baseline" if platform.endswith("x64") else f"opencode-{platform}"
        return NpmProgram(build, cls.version, "bin/opencode")

    def start(self, door: Door, model: str, system: str, prompt: str) -> Start:
        settings: dict[str, Any] = {
            "autoupdate": False,
            "share": "disabled",
            "model": f"rollwright/{model}",
            "small_model": f"rollwright/{model}",
            "permission": {"*": "allow"},
            "provider": {
                "rollwright": {
                    "npm": "@ai-sdk/openai-compatible",
                    "name": "rollwright",
                    "options": {"baseURL": f"{door.url}/v1", "apiKey": f"{{env:{_KEY}}}"},
                    "models": {model: {"name": model, "tool_call": True}},
                }
            },
        }
        secrets = {_KEY: door.key}
        if door.tools_url:
            secrets[_TOOLS_KEY] = door.tools_key
            auth = {"Authorization": f"Bearer {{env:{_TOOLS_KEY}}}"}
            settings["mcp"] = {"rollwright": {"type": "remote", "url": door.tools_url, "headers": auth}}
        env = {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), **secrets, **_QUIET}
        return Start(("run",), env, f"{system}\n\n{prompt}" if system else prompt)
