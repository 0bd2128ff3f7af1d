"""Every model call goes through the session: limits, records, branches."""

import asyncio

import pytest

from rollwright.engines.function import FunctionEngine
from rollwright.harnesses import Limits, Session
from rollwright.traces import LiveTrace
from rollwright.wire import (
    EngineUnavailable,
    Finish,
    ModelReply,
    Sampling,
    Stop,
    Usage,
    assistant,
    user,
)


def session_of(function, trace=None, **options):
    return Session(FunctionEngine(function), trace or LiveTrace("t", 0), model="m", **options)


def counted(prompt_tokens=10, completion_tokens=5):
    return lambda call: ModelReply(assistant("ok"), Finish.STOP, Usage(prompt_tokens, completion_tokens))


@pytest.mark.parametrize(
    ("limits", "answers", "stop"),
    [
        (Limits(max_turns=3), 3, Stop.TURNS_SPENT),
        (Limits(max_input_tokens=25), 3, Stop.TOKENS_SPENT),
        (Limits(max_output_tokens=10), 2, Stop.TOKENS_SPENT),
        (Limits(max_total_tokens=15), 1, Stop.TOKENS_SPENT),
    ],
)
async def test_a_spent_limit_is_an_answer_not_an_error(limits, answers, stop):
    trace = LiveTrace("t", 0)
    session = session_of(counted(), trace, limits=limits)
    conversation = session.begin([user("go")])
    for _ in range(answers):
        assert isinstance(await session.sample(conversation), ModelReply)
        conversation.say(user("on"))
    assert await session.sample(conversation) is stop
    assert trace.turns == answers


async def test_time_is_a_limit_too():
    now = [0.0]
    session = session_of(counted(), limits=Limits(timeout_s=10), clock=lambda: now[0])
    conversation = session.begin([user("go")])
    assert isinstance(await session.sample(conversation), ModelReply)
    now[0] = 10.0
    assert await session.sample(conversation) is Stop.TIME_SPENT


async def test_an_answer_is_asked_for_within_what_is_left():
    asked = []

    def answer(call):
        asked.append(call.sampling.max_tokens)
        return ModelReply(assistant("ok"), Finish.STOP, Usage(1, 30))

    session = session_of(answer, sampling=Sampling(max_tokens=50), limits=Limits(max_output_tokens=100))
    conversation = session.begin([user("go")])
    while isinstance(await session.sample(conversation), ModelReply):
        pass
    assert asked == [50, 50, 40, 10]


async def test_the_model_sees_the_whole_conversation_and_the_answer_joins_it():
    seen = []

    def answer(call):
        seen.append([message.text for message in call.messages])
        return f"answer {len(seen)}"

    session = session_of(answer)
    conversation = session.begin([user("one")])
    await session.sample(conversation)
    conversation.say(user("two"))
    other = conversation.branch()
    await session.sample(conversation)
    other.say(user("three"))
    await session.sample(other)
    assert seen == [["one"], ["one", "answer 1", "two"], ["one", "answer 1", "two", "three"]]


async def test_a_whole_history_finds_its_branch():
    trace = LiveTrace("t", 0)
    session = session_of(lambda call: str(len(call.messages)), trace)
    first = session.begin([user("one")])
    await session.sample(first)
    again = session.resume([user("one"), assistant("1"), user("two")])
    await session.sample(again)
    rewritten = session.resume([user("one"), assistant("something else"), user("two")])
    await session.sample(rewritten)
    frozen = trace.freeze(Stop.FINISHED)
    assert len(frozen.leaves) == 2
    assert sum(node.message == user("one") for node in frozen.nodes) == 1


@pytest.mark.parametrize("error", [EngineUnavailable("away"), RuntimeError("bug"), asyncio.CancelledError()])
async def test_a_call_that_got_no_answer_is_on_record(error):
    def answer(call):
        raise error

    trace = LiveTrace("t", 0)
    session = session_of(answer, trace)
    with pytest.raises(type(error)):
        await session.sample(session.begin([user("go")]))
    (call,) = trace.freeze(Stop.FAILED).calls
    assert call.reply == -1
    assert call.failure.kind == type(error).__name__
