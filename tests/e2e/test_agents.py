"""Published agents, as they are installed, solve a task of two tools in a sandbox that reaches nothing but its door."""

import functools
import shutil
import subprocess

import pytest

from harnesses.playing import LAST, PLAYS, PROMPT, SUBMIT, TITLE, Answer, branches, play, rolled_out, serving
from rollwright.engines import RelayConfig
from rollwright.engines.relay import RelayEngine
from rollwright.engines.scripted import ScriptedConfig, ScriptedServer
from rollwright.harnesses import Limits
from rollwright.harnesses.install import PARTS
from rollwright.wire import EngineRefused, Layer, Stop

AGENTS = ["codex", "claude-code", "opencode", "mini-swe-agent"]
STEPS = {"codex": PLAYS["exec_command"], "claude-code": PLAYS["Write"], "opencode": PLAYS["write"]}
STEPS["mini-swe-agent"] = [*PLAYS["bash"], ("bash", {"command": SUBMIT})]
SILENT_END = {"mini-swe-agent"}
ASIDES = {"opencode": 1}


@functools.cache
def no_sandbox():
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    words = ["bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    tried = subprocess.run(words, capture_output=True, text=True)
    return f"the kernel refuses namespaces: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.fixture(params=AGENTS)
def agent(request):
    return had(request.param)


@pytest.fixture(params=["codex", "claude-code"])
def quick_agent(request):
    """Those that start in a moment, for what need not be seen with each of them."""
    return had(request.param)


def had(name):
    if no_sandbox():
        pytest.skip(no_sandbox())
    if PARTS[name].find() is None:
        pytest.skip(f"{name} is not on this host; fetch it with: python -m rollwright.harnesses.install {name}")
    return name


def check_solved(agent, trace):
    """Turn by turn: each step is sampled once, in one branch, and what it did is what the model saw next."""
    assert (trace.failure, trace.stop, trace.reward) == (None, Stop.FINISHED, 1.0)
    found = branches(trace)
    main = max(found, key=len)
    answers = [said for role, said in main if role == "assistant"]
    assert answers == [[step] for step in STEPS[agent]] + ([] if agent in SILENT_END else [LAST])
    results = [said[0] for role, said in main if role == "tool"]
    assert len(results) == 2
    assert "42" in results[1]
    asides = [branch for branch in found if branch is not main]
    assert [branch[-1] for branch in asides] == [("assistant", TITLE)] * ASIDES.get(agent, 0)
    assert [call.failure for call in trace.calls] == [None] * (len(answers) + len(asides))
    assert PROMPT in "".join(said for role, said in main if role == "user")


async def test_an_agent_solves_its_task_with_no_network_but_its_door(agent):
    check_solved(agent, await rolled_out(agent, runtime="sandbox"))


async def test_an_agents_rollout_can_be_trained_on_token_for_token(quick_agent):
    """Through a relay to a token engine: every branch carries what the engine saw and sampled."""
    async with ScriptedServer(ScriptedConfig(tokens=True), lambda call, rng: play(call)) as server:
        relay = RelayEngine(RelayConfig(base_url=server.base_url), model="scripted")
        async with relay, serving(quick_agent, engine=relay, runtime="sandbox", return_tokens=True) as open_:
            trace = await open_.run(Answer(id="answer", prompt=PROMPT))
        # The start-up probe offers no tools.
        said = [entry.tokens.completion_ids.tolist() for entry in server.log if entry.call.tools]
    check_solved(quick_agent, trace)
    assert (trace.trainable, trace.untrainable) == (True, "")
    assert [call.tokens.ids[call.tokens.sampled].tolist() for call in trace.calls] == said
    assert [call.tokens.base for call in trace.calls] == [-1, 0, 1], "each call continues the tape of the one before"


async def test_an_agent_that_is_refused_a_call_ends_and_is_scored(quick_agent):
    trace = await rolled_out(quick_agent, runtime="sandbox", limits=Limits(max_turns=1))
    assert (trace.failure, trace.stop, trace.reward, len(trace.calls)) == (None, Stop.TURNS_SPENT, 1.0, 1)


async def test_an_engine_that_refuses_is_not_the_agents_fault(quick_agent):
    def refuse(call):
        raise EngineRefused("no such model")

    trace = await rolled_out(quick_agent, refuse, runtime="sandbox")
    assert (trace.failure.layer, trace.failure.message) == (Layer.ENGINE, "no such model")
