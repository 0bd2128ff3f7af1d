"""Published agents find the tools of their rollout by MCP, from a sandbox that reaches nothing but its door."""

import asyncio
import json

import pytest

from e2e.test_agents import had
from rollwright.dialects import DIALECTS
from rollwright.engines import RelayConfig
from rollwright.engines.function import FunctionEngine
from rollwright.engines.relay import RelayEngine
from rollwright.engines.scripted import ScriptedConfig, ScriptedServer
from rollwright.harnesses import harness_config, make_harness
from rollwright.rollouts import Environment
from rollwright.runtimes import runtime_config
from rollwright.tasks import Task, Toolset, reward, tool
from rollwright.wire import ToolCall, ToolResult, assistant


class Vault(Toolset):
    @tool
    def open_vault(self, state, word: str) -> str:
        """Open the vault."""
        state["word"] = word
        return "inside lies a feather"


class Heist(Task, frozen=True):
    @reward
    def opened(self, state) -> bool:
        return state.get("word") == "mellon"


def play(call):
    """Calls the tool under whatever name the agent gives it."""
    offered = [spec.name for spec in call.tools if spec.name.endswith("open_vault")]
    if not offered or any(message.tool_calls for message in call.messages):
        return assistant("Done.")
    return assistant("", ToolCall("call_0", offered[0], json.dumps({"word": "mellon"})))


@pytest.fixture(params=["claude-code", "codex", pytest.param("opencode", marks=pytest.mark.soak)])
def agent(request):
    return had(request.param)


async def heist(agent, engine):
    """One rollout, whose tool is called and tells the model what it saw."""
    harness = make_harness(harness_config(agent))
    environment = Environment([], harness=harness, runtime=runtime_config("sandbox", {}), toolsets=[Vault()])
    async with environment.serving(engine, "scripted") as serving:
        trace = await serving.run(Heist(id="heist", prompt="Open the vault."))
    assert trace.failure is None, trace.failure
    results = [part for node in trace.nodes for part in node.message.parts if isinstance(part, ToolResult)]
    assert "inside lies a feather" in "".join(part.text for result in results for part in result.content)
    assert trace.reward == 1.0


async def test_an_agent_calls_a_tool_of_the_environment(agent):
    await heist(agent, FunctionEngine(play))


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
async def test_codex_finds_its_tools_whichever_dialect_its_engine_speaks(dialect):
    """It declares them in a namespace, which only engines of its own dialect know."""
    await asyncio.to_thread(had, "codex")
    async with ScriptedServer(ScriptedConfig(), lambda call, rng: play(call)) as server:
        config = RelayConfig(base_url=server.base_url, dialect=dialect, api_key_env="NO_KEY_IS_NEEDED")
        async with RelayEngine(config, "scripted") as engine:
            await heist("codex", engine)
