"""Our own agent, in a real box, through the real interceptor."""

import asyncio
import json

import pytest

from rollwright.harnesses import Limits
from rollwright.runtimes.warm import stats
from rollwright.tasks import Task, ToolRefusal, reward, tool
from rollwright.wire import EngineUnavailable, Layer, Stop, ToolCall, assistant, system, user

from .playing import LAST, PROMPT, READ, WRITE, Waiting, branches, rolled_out, serving


def shell(*commands):
    """A model that runs these commands one after the other, and then tells what the last one printed."""

    def answer(call):
        done = sum(bool(message.tool_calls) for message in call.messages)
        if done < len(commands):
            return assistant("", ToolCall(f"c{done}", "bash", json.dumps({"command": commands[done]})))
        return assistant(heard(call))

    return answer


def heard(call):
    (result,) = [part for part in call.messages[-1].parts if hasattr(part, "call_id")]
    return "".join(part.text for part in result.content)


class Plain(Task, frozen=True):
    pass


async def say(*commands, **options):
    trace = await rolled_out("bash", shell(*commands), task=Plain(id="p", prompt="Go."), **options)
    assert trace.failure is None, trace.failure
    return trace.reply


async def test_two_tools_turn_by_turn():
    before = stats.forked
    trace = await rolled_out("bash")
    assert (trace.stop, trace.reward, trace.failure) == (Stop.FINISHED, 1.0, None)
    assert branches(trace) == [
        [
            ("user", PROMPT),
            ("assistant", [("bash", {"command": WRITE})]),
            ("tool", [""]),
            ("assistant", [("bash", {"command": READ})]),
            ("tool", ["42\n"]),
            ("assistant", LAST),
        ]
    ]
    assert [call.reply for call in trace.calls] == [1, 3, 5]
    assert stats.forked == before + 1, "the agent starts from what is loaded already"


async def test_the_opening_is_told_as_it_is():
    seen = []

    def answer(call):
        seen.append(call)
        return assistant("Done.")

    opening = (user("One?"), assistant("Yes."), user("Two? {prompt} \U0001f642"))
    trace = await rolled_out("bash", answer, task=Plain(id="p", system="Be brief.", prompt=opening))
    assert trace.failure is None
    assert seen[0].messages == (system("Be brief."), *opening)
    assert [tool.name for tool in seen[0].tools] == ["bash"]
    assert seen[0].model == "scripted"


async def test_no_command_sees_the_key():
    said = await say("env; cat /proc/self/environ /proc/$PPID/environ | tr '\\0' '\\n'; cat /proc/$PPID/cmdline")
    assert "HOME=" in said
    assert "ROLLWRIGHT_KEY" not in said
    assert "ROLLWRIGHT_URL" not in said


async def test_output_is_bounded_at_both_ends():
    settings = {"output_limit": 2000}
    said = await say("echo begin; head -c 3000000 /dev/zero | tr '\\0' x; echo end", settings=settings)
    assert said.startswith("begin\nxxx")
    assert said.endswith("xxxend\n")
    assert "bytes left out]" in said
    assert len(said) < 2100


async def test_failures_of_a_command_are_told():
    assert await say("echo no >&2; exit 3") == "no\n\n[exit code 3]"
    assert await say("kill -9 $$") == "\n[exit code -9]"


async def test_a_command_that_takes_too_long_is_ended_with_its_children():
    settings = {"command_timeout_s": 0.5}
    # A dead process may still be listed until its new parent has heard of it.
    look = "grep -qs 'State:.[^ZX]' /proc/$(cat pid)/status && echo alive || echo gone"
    said = await say("sleep 1000 & echo $! > pid; wait", look, settings=settings)
    assert said == "gone\n"


async def test_a_child_that_is_left_behind_does_not_hold_the_agent():
    assert await say("sleep 1000 & echo started") == "started\n"


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("bash", '{"command": ', "cannot be read"),
        ("bash", '{"cmd": "ls"}', "cannot be read"),
        ("bash", "[1]", "cannot be read"),
        ("bash", '{"command": 3}', "there is no such tool"),
        ("bash", '{"command": "a\\u0000b"}', "there is no such tool"),
        ("browser", '{"command": "ls"}', "there is no such tool"),
    ],
)
async def test_a_call_that_makes_no_sense_is_answered(name, arguments, told):
    def answer(call):
        if call.messages[-1].role == "tool":
            return assistant(heard(call))
        return assistant("", ToolCall("c", name, arguments))

    trace = await rolled_out("bash", answer, task=Plain(id="p", prompt="Go."))
    assert trace.failure is None
    assert told in trace.reply


async def test_calls_side_by_side_are_answered_in_order():
    def answer(call):
        if call.messages[-1].role == "user":
            calls = [ToolCall(f"c{n}", "bash", json.dumps({"command": f"echo {n} | tee -a log"})) for n in range(3)]
            return assistant("", *calls)
        return assistant("".join(heard_all(call)))

    trace = await rolled_out("bash", answer, task=Plain(id="p", prompt="Go."))
    assert trace.reply == "0\n1\n2\n"


def heard_all(call):
    results = [part for message in call.messages for part in message.parts if hasattr(part, "call_id")]
    return ["".join(part.text for part in result.content) for result in results]


@pytest.mark.parametrize(
    ("limits", "settings"), [(Limits(max_turns=2), {}), (Limits(), {"max_turns": 2})], ids=["rollout", "agent"]
)
async def test_turns_are_spent(limits, settings):
    trace = await rolled_out(
        "bash", shell(*["true"] * 9), task=Plain(id="p", prompt="Go."), limits=limits, settings=settings
    )
    assert (trace.stop, trace.failure, len(trace.calls)) == (Stop.TURNS_SPENT, None, 2)


async def test_an_engine_that_fails_is_the_engines_fault():
    def answer(call):
        raise EngineUnavailable("away")

    trace = await rolled_out("bash", answer, task=Plain(id="p", prompt="Go."))
    assert (trace.stop, trace.failure.layer, trace.failure.message) == (Stop.FAILED, Layer.ENGINE, "away")


async def test_a_rollout_that_runs_out_of_time_ends_its_program():
    asked = asyncio.Event()

    async def wait(call):
        asked.set()
        await asyncio.Event().wait()

    async with serving("bash", engine=Waiting(wait), limits=Limits(timeout_s=2.0)) as open_:
        trace = await open_.run(Plain(id="p", prompt="Go."))
    assert asked.is_set()
    assert (trace.stop, trace.failure) == (Stop.TIME_SPENT, None)


async def test_many_at_once_take_no_cpu_slot():
    """More programs than slots wait for their model at the same time."""
    all_here, here = asyncio.Event(), 0

    async def wait(call):
        nonlocal here
        here += 1
        if here == 12:
            all_here.set()
        await all_here.wait()

    async with serving("bash", engine=Waiting(wait, lambda call: "Done.")) as open_, asyncio.timeout(60):
        traces = await open_.run_group(Plain(id="p", prompt="Go."), 12)
    assert [trace.failure for trace in traces] == [None] * 12
    assert {trace.timing.queue_s < 1e-3 for trace in traces} == {True}


class Talks(Task, frozen=True):
    def respond(self, reply: str) -> str | None:
        return None


async def test_a_task_that_talks_back_needs_the_chat_harness():
    trace = await rolled_out("bash", shell(), task=Talks(id="p", prompt="Go."))
    assert trace.failure.layer is Layer.HARNESS
    assert "'p'" in trace.failure.message


class Tools(Task, frozen=True):
    @tool
    def add(self, a: int, b: int, state: dict) -> str:
        """Add two numbers."""
        state["added"] = a + b
        return f"{a + b}\n"

    @tool
    def refuse(self) -> str:
        """Never."""
        raise ToolRefusal("not today")

    @reward
    def right(self, state: dict) -> bool:
        return state.get("added") == 5


async def test_tools_of_the_task_are_offered_beside_bash():
    plays = [("add", {"a": 2, "b": 3}), ("add", {"a": "x"}), ("refuse", {}), ("bash", {"command": "env"})]
    seen = []

    def answer(call):
        seen.append(call)
        done = sum(bool(message.tool_calls) for message in call.messages)
        if done == len(plays):
            return assistant("Done.")
        return assistant("", ToolCall(f"c{done}", plays[done][0], json.dumps(plays[done][1])))

    trace = await rolled_out("bash", answer, task=Tools(id="p", prompt="Go."))
    assert (trace.failure, trace.stop, trace.reward) == (None, Stop.FINISHED, 1.0)
    assert sorted(spec.name for spec in seen[0].tools) == ["add", "bash", "refuse"]
    results = heard_all(seen[-1])
    assert results[0] == "5\n"
    assert "a" in results[1]
    assert results[2] == "not today"
    assert "_KEY=" not in results[3]
    assert len(branches(trace)) == 1
