"""Every model call goes through the session: limits, records, branches."""

import asyncio

import pytest

from ears import Keeping, asked_for, played
from rollwright.engines.function import FunctionEngine
from rollwright.harnesses import Limits, Refusal, Session, conversations
from rollwright.traces import LiveTrace
from rollwright.wire import (
    End,
    EngineUnavailable,
    Finish,
    Layer,
    ModelCall,
    ModelReply,
    Sampling,
    Stop,
    TextDelta,
    ToolSpec,
    Usage,
    assistant,
    system,
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


class Streaming(FunctionEngine):
    """Streams what it is given; an error is raised where it stands."""

    def __init__(self, *events):
        super().__init__(lambda call: "whole")
        self.events = events
        self.calls = []

    async def stream(self, call, ear):
        return await played(self._events(call), ear)

    async def _events(self, call):
        self.calls.append(call)
        for event in self.events:
            if isinstance(event, BaseException):
                raise event
            yield event


def streaming_session(*events, **options):
    trace = LiveTrace("t", 0)
    return Session(Streaming(*events), trace, model="m", **options), trace


async def test_a_turn_is_committed_before_its_end_is_told():
    session, trace = streaming_session(TextDelta("a"), TextDelta("b"), End(Finish.STOP, Usage(3, 2), queue_s=0.0))
    turn = await session.ask(ModelCall("any", (user("go"),)))
    assert trace.open_calls == 0, "nothing is on record before the turn is run"
    assert [(trace.turns, trace.open_calls) async for _ in asked_for(turn.stream)] == [(0, 1), (0, 1), (1, 0)]
    assert turn.reply.message == assistant("ab")
    assert (trace.reply, trace.usage) == ("ab", Usage(3, 2))


@pytest.mark.parametrize(
    ("events", "kind", "layer", "lost"),
    [
        ((TextDelta("a"), EngineUnavailable("away")), "EngineUnavailable", Layer.ENGINE, True),
        ((EngineUnavailable("away"),), "EngineUnavailable", Layer.ENGINE, False),
        ((TextDelta("a"),), "EngineUnavailable", Layer.ENGINE, True),
        ((TextDelta("a"), asyncio.CancelledError()), "CancelledError", Layer.HARNESS, True),
    ],
    ids=["died", "refused", "no end", "cancelled"],
)
async def test_any_other_way_out_is_an_abort(events, kind, layer, lost):
    session, trace = streaming_session(*events)
    turn = await session.ask(ModelCall("any", (user("go"),)))
    with pytest.raises(BaseException):  # noqa: B017 - cancellations too
        await turn.stream(Keeping())
    frozen = trace.freeze(Stop.FAILED)
    (call,) = frozen.calls
    assert (call.failure.kind, call.failure.layer) == (kind, layer)
    assert ("cut after part" in frozen.untrainable) is lost
    assert trace.open_calls == 0
    assert (session.broken is not None) is (layer is Layer.ENGINE)


async def test_whoever_stops_listening_aborts_the_call():
    session, trace = streaming_session(TextDelta("a"), TextDelta("b"), End(Finish.STOP))
    turn = await session.ask(ModelCall("any", (user("go"),)))
    events = asked_for(turn.stream)
    assert await anext(events) == TextDelta("a")
    await events.aclose()
    assert trace.open_calls == 0
    assert trace.freeze(Stop.FINISHED).calls[0].failure.kind == "CancelledError"


@pytest.mark.parametrize(
    ("own", "asked", "used"),
    [
        (Sampling(), Sampling(temperature=0.2, max_tokens=7), Sampling(temperature=0.2, max_tokens=7)),
        (
            Sampling(temperature=1.0, seed=3),
            Sampling(temperature=0.2, top_p=0.9, stop=("x",)),
            Sampling(temperature=1.0, top_p=0.9, seed=3, stop=("x",)),
        ),
        (Sampling(max_tokens=5), Sampling(max_tokens=50), Sampling(max_tokens=5)),
        (Sampling(stop=("a",)), Sampling(stop=("b",)), Sampling(stop=("a",))),
    ],
)
async def test_the_rollouts_own_choices_win(own, asked, used):
    session, _ = streaming_session(sampling=own, return_tokens=True)
    turn = await session.ask(ModelCall("gpt-any", (user("go"),), sampling=asked, extra={"x": 1}, dialect="chat"))
    assert (turn.call.model, turn.call.sampling, turn.call.return_tokens) == ("m", used, True)
    assert (turn.call.extra, turn.call.dialect) == ({"x": 1}, "chat")


async def test_a_session_that_is_stopped_refuses_and_says_why():
    session, trace = streaming_session(End(Finish.STOP), limits=Limits(max_turns=1))
    turn = await session.ask(ModelCall("any", (user("go"),)))
    await turn.stream(Keeping())
    no = await session.ask(ModelCall("any", (user("on"),)))
    assert isinstance(no, Refusal)
    assert (no.stop, session.stopped) == (Stop.TURNS_SPENT, Stop.TURNS_SPENT)
    session.stop(Stop.TASK_STOPPED)
    assert session.stopped is Stop.TURNS_SPENT, "the first reason stays"
    assert len(trace.freeze(Stop.FINISHED).nodes) == 2, "a refused call leaves no trace"


async def test_interleaved_conversations_are_found_without_a_search():
    """A program and its sub-agents take turns; each goes on from its own tip."""
    trace = LiveTrace("t", 0)
    session = session_of(lambda call: f"{call.messages[0].text}{len(call.messages)}", trace)
    histories = [[system(name), user("begin")] for name in "abc"]
    searched = []
    trace.follow, follow = lambda nodes, said: (searched.append(len(said)), follow(nodes, said))[1], trace.follow
    for _ in range(5):
        for history in histories:
            turn = await session.ask(ModelCall("any", tuple(history)))
            history += [(await turn.complete()).message, user("on")]
    frozen = trace.freeze(Stop.FINISHED)
    assert searched == [2, 2, 2], "only the beginnings are looked up in the tree"
    assert len(frozen.leaves) == 3
    assert len(frozen.nodes) == 3 * 11


async def test_the_tools_of_a_program_are_on_record_once():
    trace = LiveTrace("t", 0)
    session = session_of(lambda call: "ok", trace)
    for tools in ((), (ToolSpec("a"),), (ToolSpec("a"), ToolSpec("b")), (ToolSpec("b"),)):
        turn = await session.ask(ModelCall("any", (user("go"),), tools))
        await turn.complete()
    assert [tool.name for tool in trace.tools] == ["a", "b"]


def test_a_long_history_is_found_and_recorded_in_steps(monkeypatch):
    """Whatever is put on record in between, and wherever the recorded part of it ends."""
    monkeypatch.setattr(conversations, "_AT_ONCE", 3)
    for known in range(8):
        trace, other = LiveTrace("t", 0), LiveTrace("t", 0)
        told = tuple(user(f"word {number}") for number in range(7))
        for one in (trace, other):
            one.extend(-1, told[:known])
        steps = conversations.Heads(trace).steps_to_resume(told)
        yields = 0
        while True:
            try:
                next(steps)
            except StopIteration as done:
                conversation = done.value
                break
            yields += 1
            trace.extend(-1, told[: yields + 2])
        assert yields >= 1
        assert trace.path(conversation.tip) == conversation.messages == told
        assert other.path(conversations.Heads(other).resume(told).tip) == told
        assert " 7 messages" in repr(trace)
