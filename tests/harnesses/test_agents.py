"""How published agents are started, without starting one."""

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.harnesses import HARNESS_KINDS, Door, harness_config, make_harness
from rollwright.harnesses.agents import AgentHarness
from rollwright.runtimes import Ending, ExecResult
from rollwright.tasks import Task
from rollwright.wire import HarnessError, UsageError, assistant, user

AGENTS = ["codex", "claude-code", "opencode"]
KEY = "k3y-of-the-rollout"
DOOR = Door("http://127.0.0.1:4321", KEY, "state-key")
TOOLS_DOOR = Door(DOOR.url, KEY, DOOR.state_key, f"{DOOR.url}/rollout/mcp", "t00ls-key")
TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=60)
DONE = ExecResult(Ending.EXITED, 0, b"", b"")


class Box:
    """A box that notes what is run in it."""

    name = "box-1"

    def __init__(self, shows_cache=True, result=DONE):
        self.shows_cache = shows_cache
        self.result = result
        self.ran = []

    async def run(self, argv, **options):
        self.ran.append((argv, options))
        return self.result


@pytest.mark.parametrize("kind", AGENTS)
@given(system=TEXTS, prompt=TEXTS)
def test_no_key_is_on_a_command_line_and_the_prompt_is_on_stdin(kind, system, prompt):
    harness = make_harness(harness_config(kind))
    start = harness.start(DOOR, "some/model", system, prompt)
    assert not any(KEY in word or DOOR.state_key in word for word in start.words)
    assert KEY in start.env.values()
    assert DOOR.state_key not in "".join(start.env.values()), "an agent has no business with the task's state"
    assert start.stdin.endswith(prompt)
    assert all("\0" not in word for word in start.words)


@given(system=TEXTS)
def test_codex_reads_its_settings_as_toml(system):
    start = make_harness(harness_config("codex")).start(DOOR, "m", system, "p")
    settings = [word for before, word in zip(start.words, start.words[1:], strict=False) if before == "-c"]
    table = tomllib.loads("\n".join(settings))
    assert table["model_providers"]["rollwright"]["base_url"] == "http://127.0.0.1:4321/v1"
    assert table["model_providers"]["rollwright"]["wire_api"] == "responses"
    assert table.get("developer_instructions", "") == system


@pytest.mark.parametrize("kind", AGENTS)
def test_an_agent_is_told_of_tools_by_address_and_of_their_key_by_its_environment(kind):
    harness = make_harness(harness_config(kind))
    assert harness.takes_tools
    start = harness.start(TOOLS_DOOR, "m", "", "p")
    assert TOOLS_DOOR.tools_url in "".join([*start.words, *start.env.values()])
    assert not any(TOOLS_DOOR.tools_key in word for word in start.words)
    assert TOOLS_DOOR.tools_key in start.env.values()
    bare = harness.start(DOOR, "m", "", "p")
    assert "/rollout/mcp" not in "".join([*bare.words, *bare.env.values()])


def test_opencode_finds_its_model_in_its_settings():
    start = make_harness(harness_config("opencode")).start(DOOR, "some/model", "Be brief.", "Go.")
    settings = json.loads(start.env["OPENCODE_CONFIG_CONTENT"])
    assert settings["provider"]["rollwright"]["options"]["baseURL"] == "http://127.0.0.1:4321/v1"
    assert settings["model"] == "rollwright/some/model"
    assert start.stdin == "Be brief.\n\nGo."


@pytest.mark.parametrize("kind", AGENTS)
async def test_a_box_that_has_the_program_needs_nothing_of_this_host(kind):
    settings = {"program": "/opt/agent", "arguments": ["--extra"], "env": {"A": "1"}}
    box = Box(shows_cache=False)
    outcome = await make_harness(harness_config(kind, settings)).drive(box, DOOR, "m", Task(id="t", prompt="Go."))
    assert outcome.trouble == ""
    argv, options = box.ran[-1]
    assert (argv[0], argv[-1]) == ("/opt/agent", "--extra")
    assert options["env"]["A"] == "1"
    assert options["stdin"] == b"Go."


@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"Haiku BePC\nroom /opt/rollwright/x\n", "runs 'Haiku BePC', for which no agent is published"),
        (b"Linux x86_64\n", "has no place that programs could be kept in"),
        (b"", "runs '', for which no agent is published"),
    ],
    ids=["platform", "full", "silent"],
)
async def test_a_box_that_an_agent_cannot_be_brought_into_says_why(kind, said, why):
    box = Box(False, ExecResult(Ending.EXITED, 0, said, b""))
    with pytest.raises(HarnessError, match=f"box-1 {why}"):
        await make_harness(harness_config(kind)).drive(box, DOOR, "m", Task(id="t", prompt="Go."))


@pytest.mark.parametrize("kind", AGENTS)
async def test_a_task_that_begins_in_the_middle_is_refused(kind):
    task = Task(id="t", prompt=(user("One?"), assistant("Yes."), user("Two?")))
    with pytest.raises(HarnessError, match="begins in the middle of a conversation"):
        await make_harness(harness_config(kind, {"program": "x"})).drive(Box(), DOOR, "m", task)


@pytest.mark.parametrize(
    ("stdout", "code", "trouble"),
    [
        (b'{"is_error": false, "result": "done"}\n', 0, ""),
        (b'{"is_error": true, "result": "API Error: 400"}\n', 1, "API Error: 400"),
        (b'{"is_error": true, "subtype": "error_max_turns"}\n', 0, "error_max_turns"),
        (b"not json", 1, "ended with 1; the end of its stdout: not json"),
        (b"[1]", 2, "ended with 2; the end of its stdout: [1]"),
        (b"", 0, ""),
    ],
)
async def test_claude_code_tells_its_trouble_in_its_last_line(stdout, code, trouble):
    result = ExecResult(Ending.EXITED, code, stdout, b"")
    assert make_harness(harness_config("claude-code")).trouble(result) == trouble


def test_every_kind_is_made_and_named():
    for kind, config in HARNESS_KINDS.items():
        settings = {"argv": ["x"]} if kind == "command" else {}
        harness = make_harness(harness_config(kind, settings))
        assert harness.needs_runtime is (kind != "chat")
        assert harness.needs_door is (kind not in ("chat", "oracle"))
        assert config.__struct_config__.tag == kind
        if isinstance(harness, AgentHarness):
            assert harness.kind == kind
            assert harness.version in harness.npm_program("linux-x64").version
    with pytest.raises(UsageError, match="did you mean 'bash'"):
        harness_config("bahs")
    with pytest.raises(UsageError, match="harness 'bash' has no setting 'turns'; did you mean 'max_turns'"):
        harness_config("bash", {"turns": 3})
    with pytest.raises(UsageError, match="a setting of harness 'bash' is wrong"):
        harness_config("bash", {"max_turns": "many"})
