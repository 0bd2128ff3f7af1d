"""What published agents really send, kept as fixtures: our readers take it, and each request continues its branch.

They were recorded from the pinned versions by `python -m tests.harnesses.recording`, which says how.
"""

import json
from pathlib import Path

import pytest
from aiohttp import ClientSession

from rollwright.dialects import DIALECTS, ImageStore
from rollwright.engines.function import FunctionEngine
from rollwright.harnesses.claude_code import ClaudeCodeHarness
from rollwright.harnesses.codex import CodexHarness
from rollwright.harnesses.mini_swe import SCRIPT
from rollwright.harnesses.opencode import OpenCodeHarness
from rollwright.rollouts import Environment
from rollwright.tasks import Task
from rollwright.wire import Stop

from .playing import LAST, PROMPT, TITLE, Nothing, branches, play

GOLDEN = Path(__file__).parent / "golden"
AGENTS = ["claude-code", "codex", "mini-swe-agent", "opencode"]
# How many requests are asides (a title) and how many messages come before the first answer.
ASIDES = {"opencode": 1}


def golden(agent):
    return json.loads((GOLDEN / f"{agent}.json").read_text())


def calls(told):
    dialect, images = DIALECTS[told["dialect"]], ImageStore()
    return [dialect.read_request(json.dumps(request["body"]).encode(), images) for request in told["requests"]]


class Replay:
    """A harness that sends what was recorded, one request after the other."""

    needs_runtime = False
    needs_door = True

    def __init__(self, told):
        self.told = told

    async def run(self, session, around):
        async with ClientSession(around.door.url) as client:
            for request in self.told["requests"]:
                secrets = {"authorization": f"Bearer {around.door.key}", "x-api-key": around.door.key}
                headers = {name: secrets.get(name, value) for name, value in request["headers"].items()}
                async with client.post(request["path"], json=request["body"], headers=headers) as answer:
                    assert answer.status == 200, await answer.text()
                    await answer.read()
        return Stop.FINISHED


async def replayed(told):
    """The trace of the recorded requests, answered by the model that answered them then."""
    environment = Environment(Nothing(), harness=Replay(told))
    async with environment.serving(FunctionEngine(play), "scripted") as serving:
        trace = await serving.run(Task(id="t", prompt=PROMPT))
    assert trace.failure is None, trace.failure
    return trace


@pytest.mark.parametrize("agent", AGENTS)
def test_our_readers_take_what_agents_send(agent):
    told = golden(agent)
    for request, call in zip(told["requests"], calls(told), strict=True):
        assert request["path"].partition("?")[0] == DIALECTS[told["dialect"]].path
        assert DIALECTS[told["dialect"]].read_key(request["headers"]) == "KEY"
        assert call.model == "scripted"
        assert call.dialect == told["dialect"]
        assert call.stream is (agent != "mini-swe-agent")
        assert PROMPT in "".join(message.text for message in call.messages) or agent == "mini-swe-agent"


@pytest.mark.parametrize("agent", AGENTS)
async def test_every_request_continues_the_answer_before_it(agent):
    """Agents write answers anew: the JSON of arguments without spaces, cache marks moved, fields of their own added.
    The history they send back is still the one that was sampled."""
    told = golden(agent)
    trace = await replayed(told)
    asides = ASIDES.get(agent, 0)
    assert len(trace.calls) == len(told["requests"])
    found = branches(trace)
    assert len(found) == 1 + asides
    main = max(found, key=len)
    answers = [said for role, said in main if role == "assistant"]
    assert len(answers) == len(told["requests"]) - asides, "each of its answers stands once in the one branch"
    for aside in found:
        assert aside is main or aside[-1] == ("assistant", TITLE)
    if agent != "mini-swe-agent":
        assert main[-1] == ("assistant", LAST)


@pytest.mark.parametrize("agent", AGENTS)
def test_fixtures_hold_no_secret_no_path_and_nobody_elses_prose(agent):
    text = (GOLDEN / f"{agent}.json").read_text()
    for word in ("/home/", "/tmp/", "/root", "127.0.0.1", "localhost"):
        assert word not in text
    for request in golden(agent)["requests"]:
        assert {request["headers"].get("authorization", "Bearer KEY"), request["headers"].get("x-api-key", "KEY")} == {
            "Bearer KEY",
            "KEY",
        }
    longest = max(len(line) for line in text.splitlines())
    assert longest < 400


def test_fixtures_are_of_the_pinned_versions():
    kinds = {"codex": CodexHarness, "claude-code": ClaudeCodeHarness, "opencode": OpenCodeHarness}
    for agent, harness in kinds.items():
        assert golden(agent)["version"] == harness.version
    assert f"mini-swe-agent=={golden('mini-swe-agent')['version']}" in SCRIPT.read_text()
