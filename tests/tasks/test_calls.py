"""What hooks return and raise becomes scores, messages or one clear sentence; plain hooks share a hop."""

import asyncio
import math
import sys
import threading
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.tasks import (
    Task,
    call_group,
    call_respond,
    call_scores,
    call_stops,
    group_reward,
    hooks_of,
    metric,
    reward,
    stop,
)
from rollwright.tasks.threads import HOOK_THREADS
from rollwright.wire import Layer, RuntimeLost, Score, TaskBroken, Trace, assistant, user


class Given(Task, frozen=True):
    """Returns what `state` says."""

    @reward(weight=2)
    def plain(self, state):
        return state["value"]

    @metric
    async def awaited(self, state):
        return state["value"]

    def respond(self, state):
        return state["value"]

    @stop
    def halt(self, state):
        return state["value"]

    @group_reward(weight=0.5)
    def group(self, traces, states):
        return states[0]["value"]


TASK = Given(id="a")
HOOKS = hooks_of(Given)
SCORERS = (*HOOKS.rewards, *HOOKS.metrics)


@given(
    value=st.one_of(
        st.booleans(),
        st.integers(-(10**30), 10**30),
        st.floats(allow_nan=False, allow_infinity=False),
        st.floats(width=32, allow_nan=False, allow_infinity=False).map(np.float32),
        st.booleans().map(np.bool_),
        st.integers(0, 255).map(np.uint8),
        st.fractions(),
    )
)
async def test_numbers_are_scores(value):
    scores = await call_scores(SCORERS, TASK, {"state": {"value": value}})
    assert scores == {"plain": Score(float(value), 2.0), "awaited": Score(float(value), 0.0)}
    assert type(scores["plain"].value) is float


@pytest.mark.parametrize("hook", SCORERS, ids=lambda hook: hook.name)
@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, None, "1", "", [1.0], np.float64("nan"), np.array([1.0]), 10**400, 1j, {}, object],
    ids=str,
)
async def test_nonsense_is_one_sentence(hook, value):
    with pytest.raises(TaskBroken) as broken:
        await call_scores([hook], TASK, {"state": {"value": value}})
    said = str(broken.value)
    assert said.startswith(f"{hook.kind} {hook.name!r} of Given returned ")
    assert said.endswith("; return a finite number")
    assert "\n" not in said
    assert len(said) < 200


async def test_the_sentence_names_the_value():
    with pytest.raises(TaskBroken, match=r"^reward 'plain' of Given returned nan; return a finite number$"):
        await call_scores(HOOKS.rewards, TASK, {"state": {"value": math.nan}})


class Raising(Task, frozen=True):
    @reward
    def plain(self, state):
        raise state["error"]

    @reward
    async def awaited(self, state):
        raise state["error"]


@pytest.mark.parametrize("hook", hooks_of(Raising).rewards, ids=lambda hook: hook.name)
@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("division\nby zero"),
        SystemExit(3),
        TimeoutError(),
        KeyError("x"),
        RecursionError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_a_hook_raises_is_the_tasks_fault(hook, error):
    with pytest.raises(TaskBroken) as broken:
        await call_scores([hook], Raising(id="a"), {"state": {"error": error}})
    assert f"{hook.name!r} of Raising raised {type(error).__name__}" in str(broken.value)
    assert "\n" not in str(broken.value)
    assert broken.value.__cause__ is error


async def test_stop_iteration_of_a_plain_hook_is_an_error_like_any_other():
    with pytest.raises(TaskBroken, match="raised StopIteration: 3"):
        await call_scores(hooks_of(Raising).rewards, Raising(id="a"), {"state": {"error": StopIteration(3)}})


@pytest.mark.parametrize("hook", hooks_of(Raising).rewards, ids=lambda hook: hook.name)
async def test_an_error_of_ours_keeps_its_layer(hook):
    lost = RuntimeLost("box died")
    with pytest.raises(RuntimeLost) as raised:
        await call_scores([hook], Raising(id="a"), {"state": {"error": lost}})
    assert raised.value is lost
    assert raised.value.layer is Layer.RUNTIME


async def test_cancellation_passes_through_an_async_hook():
    class Waiting(Task, frozen=True):
        @reward
        async def wait(self, state):
            state["began"].set()
            await asyncio.Event().wait()

    began = asyncio.Event()
    call = asyncio.create_task(call_scores(hooks_of(Waiting).rewards, Waiting(id="a"), {"state": {"began": began}}))
    await began.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


def noting(index, is_async):
    """A reward that notes its place in the order and its thread."""

    def plain(self, state):
        state["seen"].append((index, threading.current_thread().name))
        return index

    async def awaited(self, state):
        return plain(self, state)

    return reward(awaited if is_async else plain)


def mixed(pattern):
    """A task type with one reward for each letter: s for a plain one, a for an async one."""
    body = {f"r{index:02d}": noting(index, letter == "a") for index, letter in enumerate(pattern)}
    return type(Task)("Mixed", (Task,), {"__annotations__": {}, "__module__": __name__, **body})


@given(pattern=st.text("sa", max_size=12))
async def test_consecutive_plain_hooks_share_one_hop_and_order_is_kept(pattern):
    kind = mixed(pattern)
    state = {"seen": []}
    before = HOOK_THREADS.hops
    scores = await call_scores(hooks_of(kind).rewards, kind(id="a"), {"state": state})
    runs = sum(1 for chunk in pattern.split("a") if chunk)
    assert HOOK_THREADS.hops - before == runs
    assert [score.value for score in scores.values()] == list(range(len(pattern)))
    assert [index for index, _ in state["seen"]] == list(range(len(pattern)))
    own = threading.current_thread().name
    assert [name == own for _, name in state["seen"]] == [letter == "a" for letter in pattern]
    assert all(name == own or name.startswith("rollwright-hook") for _, name in state["seen"])


async def test_nothing_to_do_is_no_hop():
    before = HOOK_THREADS.hops
    results = await asyncio.gather(*(call_scores((), TASK, {}) for _ in range(256)))
    assert results == [{}] * 256
    assert await call_group((), TASK, [Trace("a", 0)] * 3, [{}] * 3) == [{}, {}, {}]
    assert await call_stops((), TASK, {}) == ""
    assert HOOK_THREADS.hops == before


async def test_a_wrapped_async_hook_is_awaited():
    class Wrapped(Task, frozen=True):
        @reward
        def later(self, reply):
            async def answer():
                return len(reply)

            return answer()

    assert await call_scores(hooks_of(Wrapped).rewards, Wrapped(id="a"), {"reply": "abc"}) == {"later": Score(3.0, 1.0)}


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        (None, ()),
        ("go on", (user("go on"),)),
        (user("x"), (user("x"),)),
        ([user("x"), assistant("y")], (user("x"), assistant("y"))),
        ((), ()),
    ],
)
async def test_respond_goes_on_or_ends(value, messages):
    assert await call_respond(HOOKS.respond, TASK, {"state": {"value": value}}) == messages


@pytest.mark.parametrize("value", [3, ["text"], {"role": "user"}, b"bytes", True])
async def test_respond_with_nonsense_is_the_tasks_fault(value):
    with pytest.raises(TaskBroken, match="respond 'respond' of Given returned"):
        await call_respond(HOOKS.respond, TASK, {"state": {"value": value}})


@pytest.mark.parametrize(("value", "said"), [(True, "halt"), (np.True_, "halt"), (False, ""), (None, "")])
async def test_stop_is_yes_or_no(value, said):
    assert await call_stops(HOOKS.stops, TASK, {"state": {"value": value}}) == said


async def test_stop_with_nonsense_is_the_tasks_fault():
    with pytest.raises(TaskBroken, match="return True or False"):
        await call_stops(HOOKS.stops, TASK, {"state": {"value": "no"}})


@pytest.mark.parametrize("value", [[1, 0.5, True], (1, 0.5, True), np.array([1, 0.5, 1]), [Fraction(1), 0.5, 1]])
async def test_a_group_reward_gives_each_trace_its_number(value):
    traces = [Trace("a", attempt) for attempt in range(3)]
    scores = await call_group(HOOKS.group_rewards, TASK, traces, [{"value": value}, {}, {}])
    assert scores == [{"group": Score(1.0, 0.5)}, {"group": Score(0.5, 0.5)}, {"group": Score(1.0, 0.5)}]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ([1, 2], "2 numbers for 3 traces"),
        (1.0, "one number for each trace"),
        (None, "one number for each trace"),
        ("123", "one number for each trace"),
        ([1, math.nan, 1], "returned nan; return a finite number"),
    ],
)
async def test_group_nonsense_is_one_sentence(value, complaint):
    traces = [Trace("a", attempt) for attempt in range(3)]
    with pytest.raises(TaskBroken, match=complaint):
        await call_group(HOOKS.group_rewards, TASK, traces, [{"value": value}, {}, {}])


async def test_a_hook_keeps_nothing_alive_after_its_call():
    class Kept:
        pass

    kept = Kept()
    before = sys.getrefcount(kept)
    state = {"value": 1.0, "kept": kept}
    await call_scores(HOOKS.rewards, TASK, {"state": state})
    del state
    assert sys.getrefcount(kept) <= before
