"""One rollout and one group: every failure has one layer, neighbours go on, everything opened is closed."""

import asyncio
import os
from typing import ClassVar

import pytest

from rollwright.engines.function import FunctionEngine
from rollwright.harnesses import Limits
from rollwright.rollouts import Environment
from rollwright.runtimes import SubprocessConfig
from rollwright.tasks import Task, Taskset, ToolRefusal, group_reward, metric, reward, stop, tool
from rollwright.wire import (
    EngineUnavailable,
    Layer,
    Message,
    RuntimeLost,
    Stop,
    Text,
    ToolCall,
    assistant,
)


class Nothing(Taskset):
    def tasks(self):
        return []


async def run(task, answer="ok", n=1, **options):
    engine = FunctionEngine(answer if callable(answer) else lambda call: answer)
    async with Environment(Nothing(), **options).serving(engine, "m") as serving:
        return await serving.run_group(task, n)


class Plain(Task):
    @reward(weight=2.0)
    def length(self, reply: str) -> float:
        return len(reply)

    @reward
    async def bonus(self, trace) -> float:
        return trace.turns

    @metric
    def words(self, reply: str) -> int:
        return len(reply.split())


async def test_a_reward_is_the_weighted_sum_and_metrics_do_not_count():
    (trace,) = await run(Plain(id="a", prompt="hi", info={"level": 3}), "abc")
    assert trace.failure is None
    assert trace.reward == 2 * 3 + 1
    assert {name: (score.value, score.weight) for name, score in trace.scores.items()} == {
        "length": (3.0, 2.0),
        "bonus": (1.0, 1.0),
        "words": (1.0, 0.0),
    }
    assert [message.text for message in trace.messages] == ["hi", "abc"]
    assert (trace.stop, trace.info, trace.runtime) == (Stop.FINISHED, {"level": 3}, "")


class Broken(Task):
    where: str

    def setup(self):
        self.fail("setup")

    def respond(self):
        self.fail("respond")

    def finalize(self):
        self.fail("finalize")

    @stop
    def done(self) -> bool:
        self.fail("stop")
        return False

    @tool
    def use(self) -> str:
        """Use it."""
        self.fail("tool")
        return "used"

    @reward
    def score(self) -> float:
        self.fail("reward")
        return float("nan") if self.where == "nan" else None if self.where == "none" else 1.0

    def fail(self, here):
        if self.where == here:
            raise ZeroDivisionError("by zero")
        if self.where == "box" and here == "reward":
            raise RuntimeLost("the box is gone")


def tool_then_done(call):
    used = any(message.role == "tool" for message in call.messages)
    return "done" if used else assistant("", ToolCall("1", "use", "{}"))


@pytest.mark.parametrize(
    ("where", "layer"),
    [
        ("setup", Layer.TASK),
        ("respond", Layer.TASK),
        ("finalize", Layer.TASK),
        ("stop", Layer.TASK),
        ("reward", Layer.TASK),
        ("nan", Layer.TASK),
        ("none", Layer.TASK),
        ("tool", Layer.TOOL),
        ("box", Layer.RUNTIME),
        ("nowhere", None),
    ],
)
async def test_what_breaks_has_one_layer(where, layer):
    (trace,) = await run(Broken(id="a", prompt="hi", where=where), tool_then_done)
    assert (trace.failure.layer if trace.failure else None) == layer
    assert trace.stop is (Stop.FAILED if layer else Stop.FINISHED)
    assert trace.reward == (0.0 if layer else 1.0)


async def test_an_engine_that_is_away_is_the_engines_fault():
    def away(call):
        raise EngineUnavailable("nobody answers")

    (trace,) = await run(Plain(id="a", prompt="hi"), away)
    assert (trace.failure.layer, trace.failure.message) == (Layer.ENGINE, "nobody answers")
    assert trace.calls[0].failure.kind == "EngineUnavailable"


class Breaking:
    needs_runtime = False
    needs_door = False

    def __init__(self, error):
        self.error = error

    async def run(self, session, around):
        raise self.error


@pytest.mark.parametrize("error", [KeyError("x"), TimeoutError("its own")])
async def test_a_harness_that_raises_is_the_harness_s_fault(error):
    (trace,) = await run(Plain(id="a", prompt="hi"), harness=Breaking(error))
    assert trace.failure.layer is Layer.HARNESS


class Sometimes(Task):
    seen: ClassVar[list] = []

    @reward
    def score(self, trace) -> float:
        if trace.attempt == 1:
            raise ValueError("unlucky")
        return 1.0


async def test_a_failure_leaves_its_neighbours_alone():
    traces = await run(Sometimes(id="a", prompt="hi"), n=3)
    assert [trace.failure is None for trace in traces] == [True, False, True]
    assert [trace.attempt for trace in traces] == [0, 1, 2]


class Ranked(Task):
    @reward
    def own(self, trace, state) -> float:
        state["attempt"] = trace.attempt
        if trace.attempt == 1:
            raise ValueError("out")
        return 0.5

    @group_reward(weight=10)
    def best(self, traces, states) -> list[float]:
        assert [state["attempt"] for state in states] == [trace.attempt for trace in traces]
        return [float(trace.attempt == max(t.attempt for t in traces)) for trace in traces]


async def test_a_group_is_scored_over_those_that_finished():
    traces = await run(Ranked(id="a", prompt="hi"), n=4)
    assert [trace.reward for trace in traces] == [0.5, 0.0, 0.5, 10.5]
    assert [trace.failure is None for trace in traces] == [True, False, True, True]


class BadGroup(Task):
    @group_reward
    def best(self, traces) -> list[float]:
        return [1.0]


async def test_a_group_reward_that_breaks_fails_the_group():
    traces = await run(BadGroup(id="a", prompt="hi"), n=3)
    assert {trace.failure.layer for trace in traces} == {Layer.TASK}


class Counting(Task):
    def setup(self, state):
        state["left"] = 2

    @tool
    def count(self, step: int, state) -> str:
        """Count down."""
        if step > 1:
            raise ToolRefusal("one at a time")
        state["left"] -= step
        return f"{state['left']} left"

    def respond(self, state):
        return "go on" if state["left"] else None

    @reward
    def empty(self, state) -> bool:
        return state["left"] == 0


async def test_tools_and_the_task_take_turns_with_the_model():
    script = iter(
        [
            assistant("", ToolCall("1", "count", '{"step": 2}')),
            assistant("", ToolCall("2", "count", '{"step": "x"}'), ToolCall("3", "nothing", "{}")),
            assistant("hm"),
            Message(
                "assistant",
                (Text("twice"), ToolCall("4", "count", '{"step": 1}'), ToolCall("5", "count", '{"step": 1}')),
            ),
            assistant("done"),
        ]
    )
    (trace,) = await run(Counting(id="a", prompt="count"), lambda call: next(script))
    assert trace.failure is None, trace.failure.trail
    assert trace.reward == 1.0
    said = [part for message in trace.messages if message.role == "tool" for part in message.parts]
    assert [part.is_error for part in said] == [True, True, True, False, False]
    assert said[-1].content[0].text == "0 left"
    assert [message.text for message in trace.messages if message.role == "user"] == ["count", "go on"]


class Endless(Task):
    def respond(self):
        return "more"

    @reward
    def score(self) -> float:
        return 1.0


async def test_a_spent_limit_ends_the_conversation_and_it_is_scored():
    (trace,) = await run(Endless(id="a", prompt="hi"), limits=Limits(max_turns=4))
    assert (trace.stop, trace.turns, trace.reward) == (Stop.TURNS_SPENT, 4, 1.0)


class Stuck:
    async def complete(self, call):
        await asyncio.Event().wait()


async def test_time_that_runs_out_ends_the_call_and_it_is_scored():
    environment = Environment(Nothing(), limits=Limits(timeout_s=0.01))
    async with environment.serving(Stuck(), "m") as serving:
        trace = await serving.run(Endless(id="a", prompt="hi"))
    assert (trace.stop, trace.reward, trace.failure) == (Stop.TIME_SPENT, 1.0, None)
    assert trace.calls[0].failure is not None


class Slow(Task):
    async def setup(self):
        await asyncio.Event().wait()


async def test_setup_has_a_deadline():
    (trace,) = await run(Slow(id="a", prompt="hi"), limits=Limits(setup_timeout_s=0.01))
    assert (trace.failure.layer, trace.failure.message) == (Layer.TASK, "setup took longer than 0.01 s")


class Boxed(Task):
    async def setup(self, runtime):
        await runtime.write("note", b"hello")

    @reward
    async def read_back(self, runtime, state) -> float:
        result = await runtime.run(["cat", "note"])
        state["where"] = (await runtime.run(["pwd"])).text.strip()
        return float(result.stdout == b"hello")

    @group_reward(weight=0)
    def keep(self, states, traces) -> list[float]:
        BOXES.extend(state["where"] for state in states)
        return [0.0 for _ in traces]


BOXES: list[str] = []


async def test_a_box_is_made_when_a_hook_asks_for_one_and_is_gone_afterwards():
    BOXES.clear()
    traces = await run(Boxed(id="a", prompt="hi"), n=2)
    assert [trace.failure for trace in traces] == [None, None]
    assert [trace.reward for trace in traces] == [1.0, 1.0]
    assert len(set(BOXES)) == 2
    assert not any(os.path.exists(box) for box in BOXES)
    assert all(trace.runtime.startswith("subprocess") and trace.timing.provision_s > 0 for trace in traces)


async def test_a_box_that_does_not_start_is_the_rollouts_failure(monkeypatch):
    from rollwright.runtimes import SubprocessRuntime

    async def refuse(self):
        raise OSError("no room")

    monkeypatch.setattr(SubprocessRuntime, "start", refuse)
    (trace,) = await run(Boxed(id="a", prompt="hi"), runtime=SubprocessConfig())
    assert trace.failure.layer is Layer.RUNTIME
    assert "no room" in trace.failure.message


class Waiting(Task):
    async def setup(self, runtime):
        WAITING.append((await runtime.run(["pwd"])).text.strip())

    @reward
    def never(self) -> float:
        return 0.0


WAITING: list[str] = []


async def test_a_cancelled_rollout_closes_what_it_opened():
    WAITING.clear()
    asked = asyncio.Event()

    class Asked(Stuck):
        async def complete(self, call):
            asked.set()
            await super().complete(call)

    async with Environment(Nothing()).serving(Asked(), "m") as serving:
        rollout = asyncio.create_task(serving.run(Waiting(id="a", prompt="hi")))
        async with asyncio.timeout(20):
            await asked.wait()
        assert "1 rollouts in flight" in repr(serving)
        rollout.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollout
        assert "0 rollouts in flight" in repr(serving)
    assert WAITING
    assert not os.path.exists(WAITING[0])


async def test_closing_ends_what_still_runs():
    async with Environment(Nothing()).serving(Stuck(), "m") as serving:
        rollout = asyncio.create_task(serving.run(Plain(id="a", prompt="hi")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await rollout
