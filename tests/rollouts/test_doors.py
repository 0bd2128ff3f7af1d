"""Programs in rollouts: they find their model behind a door, and what they hear and do ends up in the trace."""

import asyncio
import sys

import aiohttp
import pytest

from rollwright.engines.function import FunctionEngine
from rollwright.harnesses import Limits
from rollwright.rollouts import Environment
from rollwright.tasks import Refuse, Task, reward, stop
from rollwright.wire import EngineUnavailable, HarnessError, Layer, Message, ModelCall, Stop, TaskBroken, Text, user

PROGRAM = """
import json, os, sys, urllib.request
history = []
for word in sys.argv[1:]:
    history.append({"role": "user", "content": word})
    body = json.dumps({"model": "any", "messages": history}).encode()
    request = urllib.request.Request(os.environ["URL"] + "/v1/chat/completions", body, {
        "content-type": "application/json", "authorization": "Bearer " + os.environ["KEY"]})
    with urllib.request.urlopen(request, timeout=20) as answer:
        history.append(json.load(answer)["choices"][0]["message"])
print(history[-1]["content"])
"""


class BoxedProgram:
    """Speaks a few words from inside a box."""

    needs_runtime = True
    needs_door = True

    def __init__(self, *words):
        self.words = words

    async def run(self, session, around):
        env = {"URL": around.door.url, "KEY": around.door.key}
        runtime = around.supplies()["runtime"]
        result = await runtime.run([sys.executable, "-c", PROGRAM, *self.words], env=env, timeout_s=30)
        if not result.ok:
            raise HarnessError(f"the program failed: {result.stderr[-300:]!r}")
        return Stop.FINISHED


class Program:
    """A program in this process: `script` gets a client that knows the key."""

    needs_runtime = False
    needs_door = True

    def __init__(self, script):
        self.script = script
        self.doors = []

    async def run(self, session, around):
        self.doors.append(around.door)
        async with aiohttp.ClientSession(headers={"x-api-key": around.door.key}) as client:
            return await self.script(client, around) or Stop.FINISHED


async def say(client, around, *words, status=200):
    body = {"model": "any", "messages": [{"role": "user", "content": word} for word in words]}
    async with client.post(f"{around.door.url}/v1/chat/completions", json=body) as answer:
        told = await answer.json()
        assert answer.status == status, told
        return told["choices"][0]["message"]["content"] if status == 200 else told["error"]


class Echo(Task, frozen=True):
    @reward
    def spoke(self, reply: str) -> bool:
        return bool(reply)


def echo(call):
    return f"heard {call.messages[-1].text}"


async def rolled(harness, task=None, answer=echo, **options):
    environment = Environment([], harness=harness, **options)
    async with environment.serving(FunctionEngine(answer), "m") as serving:
        trace = await serving.run(task or Echo(id="t"))
        assert "0 rollouts, 0 calls" in repr(serving.interceptor)
    return trace


async def test_a_program_in_a_box_reaches_its_model():
    trace = await rolled(BoxedProgram("one", "two"))
    assert trace.failure is None
    assert [message.text for message in trace.messages] == ["one", "heard one", "two", "heard two"]
    assert (trace.stop, trace.reward) == (Stop.FINISHED, 1.0)


async def test_side_requests_are_branches_of_the_same_trace():
    async def script(client, around):
        await asyncio.gather(say(client, around, "title?"), say(client, around, "work"), say(client, around, "work"))

    trace = await rolled(Program(script))
    assert len(trace.leaves) == 3
    assert sorted(node.message.text for node in trace.nodes if node.call < 0) == ["title?", "work"]
    timing = trace.timing
    assert timing.model_s + timing.tool_s + timing.queue_s <= timing.total_s


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_spent_limit_is_what_the_trace_says(crashes):
    async def script(client, around):
        await say(client, around, "one")
        no = await say(client, around, "two", status=400)
        assert no["type"] == "turns_spent"
        if crashes:
            raise HarnessError("exit 1")

    trace = await rolled(Program(script), limits=Limits(max_turns=1))
    assert (trace.stop, trace.failure, trace.turns, trace.reward) == (Stop.TURNS_SPENT, None, 1, 1.0)


@pytest.mark.parametrize("crashes", [False, True])
async def test_an_engine_that_failed_the_program_failed_the_rollout(crashes):
    def answer(call):
        raise EngineUnavailable("gone")

    async def script(client, around):
        await say(client, around, "one", status=503)
        if crashes:
            raise HarnessError("exit 1")

    trace = await rolled(Program(script), answer=answer)
    assert (trace.stop, trace.failure.layer, trace.failure.message) == (Stop.FAILED, Layer.ENGINE, "gone")


async def test_a_program_that_got_over_an_engine_failure_is_scored():
    answers = iter([EngineUnavailable("gone"), "fine"])

    def answer(call):
        said = next(answers)
        if isinstance(said, Exception):
            raise said
        return said

    async def script(client, around):
        await say(client, around, "one", status=503)
        assert await say(client, around, "one") == "fine"

    trace = await rolled(Program(script), answer=answer)
    assert (trace.stop, trace.reward, len(trace.calls), trace.turns) == (Stop.FINISHED, 1.0, 2, 1)


async def test_a_key_opens_nothing_when_its_rollout_is_over():
    async def script(client, around):
        await say(client, around, "one")

    harness = Program(script)
    environment = Environment([], harness=harness)
    async with environment.serving(FunctionEngine(echo), "m") as serving:
        await serving.run_group(Echo(id="t"), 3)
        doors = harness.doors
        assert len({secret for door in doors for secret in (door.key, door.state_key)}) == 6
        async with aiohttp.ClientSession() as client:
            for door in doors:
                headers = {"authorization": f"Bearer {door.key}"}
                async with client.post(f"{door.url}/v1/messages", headers=headers) as answer:
                    assert answer.status == 401
                    assert (await answer.json())["error"]["type"] == "authentication_error"


async def test_time_that_is_spent_ends_a_call_that_waits():
    began = asyncio.Event()

    class Stuck(FunctionEngine):
        async def complete(self, call):
            began.set()
            await asyncio.Event().wait()

    async def script(client, around):
        await say(client, around, "one")

    async with Environment([], harness=Program(script), limits=Limits(timeout_s=0.3)).serving(
        Stuck(echo), "m"
    ) as serving:
        trace = await serving.run(Echo(id="t"))
    assert began.is_set()
    assert trace.stop is Stop.TIME_SPENT
    (call,) = trace.calls
    assert call.failure is not None
    assert not trace.trainable


class Watched(Echo, frozen=True):
    def on_request(self, request: ModelCall, state: dict):
        state["asked"] = state.get("asked", 0) + 1
        text = request.messages[-1].text
        if text == "forbidden":
            return Refuse("not that")
        if text == "end":
            return Stop.TASK_STOPPED
        if text == "rewrite":
            return ModelCall(request.model, (user("rewritten"),))
        return None

    def on_response(self, request: ModelCall, response, state: dict):
        if response.message.text == "heard secret":
            return "hidden"
        if response.message.text == "heard enough":
            return Stop.TASK_STOPPED
        return None


async def test_a_task_rewrites_refuses_and_stops():
    async def script(client, around):
        assert await say(client, around, "rewrite") == "heard rewritten"
        assert await say(client, around, "secret") == "hidden"
        assert (await say(client, around, "forbidden", status=400))["message"] == "not that"
        assert await say(client, around, "plain") == "heard plain"
        assert (await say(client, around, "end", status=400))["type"] == "task_stopped"
        assert (await say(client, around, "plain", status=400))["type"] == "task_stopped"

    trace = await rolled(Program(script), Watched(id="t"))
    assert trace.failure is None
    assert trace.stop is Stop.TASK_STOPPED
    assert [node.message.text for node in trace.nodes if node.call >= 0] == [
        "heard rewritten",
        "heard secret",
        "heard plain",
    ]


async def test_an_answer_may_end_the_rollout():
    async def script(client, around):
        assert (await say(client, around, "enough", status=400))["type"] == "task_stopped"

    trace = await rolled(Program(script), Watched(id="t"))
    assert (trace.stop, trace.turns) == (Stop.TASK_STOPPED, 1)


async def test_the_chat_loop_asks_the_same_hooks():
    environment = Environment([])
    async with environment.serving(FunctionEngine(echo), "m") as serving:
        rewritten = await serving.run(Watched(id="t", prompt="rewrite"))
        hidden = await serving.run(Watched(id="t", prompt="secret"))
        ended = await serving.run(Watched(id="t", prompt="end"))
    assert rewritten.reply == "heard rewritten"
    assert (hidden.reply, hidden.stop) == ("heard secret", Stop.FINISHED)
    assert (ended.turns, ended.stop) == (0, Stop.TASK_STOPPED)


async def test_a_hook_that_breaks_fails_the_rollout_whatever_the_program_does():
    class Broken(Echo, frozen=True):
        def on_request(self):
            raise ValueError("typo")

    async def script(client, around):
        await say(client, around, "one", status=503)
        await say(client, around, "two", status=400)

    trace = await rolled(Program(script), Broken(id="t"))
    assert (trace.failure.layer, trace.failure.kind) == (Layer.TASK, TaskBroken.__name__)


async def test_stop_hooks_are_asked_after_each_answer_of_a_program():
    class Short(Echo, frozen=True):
        @stop
        def said_enough(self, trace) -> bool:
            return trace.turns >= 2

    async def script(client, around):
        await say(client, around, "one")
        await say(client, around, "one", "two")
        await say(client, around, "one", "two", "three", status=400)

    trace = await rolled(Program(script), Short(id="t"))
    assert (trace.stop, trace.turns) == (Stop.TASK_STOPPED, 2)


async def test_the_second_key_opens_the_task_state_and_nothing_else():
    class Stateful(Echo, frozen=True):
        def setup(self, state: dict):
            state["goal"] = 7

        @reward
        def found(self, state: dict) -> bool:
            return state.get("found") == 7

    async def script(client, around):
        url, door = f"{around.door.url}/rollout/state", around.door
        async with client.get(url) as answer:
            assert answer.status == 403
        headers = {"x-api-key": door.state_key}
        async with client.get(url, headers=headers) as answer:
            assert await answer.json() == {"goal": 7}
        async with client.post(url, headers=headers, json={"found": 7}) as answer:
            assert answer.status == 200
        async with client.post(f"{door.url}/v1/chat/completions", headers=headers, json={}) as answer:
            assert answer.status == 403

    trace = await rolled(Program(script), Stateful(id="t"))
    assert trace.failure is None
    assert trace.scores["found"].value == 1.0
    assert Message("user", (Text("x"),)) == user("x")
