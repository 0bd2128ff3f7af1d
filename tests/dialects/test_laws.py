"""The laws of every dialect: what was written is what is read, whole or in a stream, wherever the bytes are cut."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialects.cases import (
    IMAGES,
    NAMES,
    arguments,
    asking,
    model_calls,
    model_replies,
    plain,
    read_cut,
    spoken,
    stream_of,
)
from rollwright.dialects import DIALECTS, KEEPALIVE
from rollwright.wire import (
    End,
    Finish,
    ModelCall,
    ModelReply,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    WireError,
    assistant,
    events_of,
    reply_of,
)

law = settings(max_examples=30)
each_dialect = pytest.mark.parametrize("name", NAMES)


@each_dialect
@law
@given(data=st.data())
def test_a_request_is_read_as_it_was_written(name, data):
    call = data.draw(model_calls(name))
    again = DIALECTS[name].read_request(DIALECTS[name].write_request(call, IMAGES), IMAGES)
    if name == "chat" and call.stream:
        # Our client always asks for usage, and a server must know that it was asked.
        call = msgspec.structs.replace(call, extra={**call.extra, "stream_options": {"include_usage": True}})
    assert again == call


@each_dialect
@given(text=arguments)
def test_the_text_of_arguments_is_kept_byte_for_byte(name, text):
    said = assistant("", ToolCall("id", "tool", text))
    body = DIALECTS[name].write_request(ModelCall("m", (said,)), IMAGES)
    assert DIALECTS[name].read_request(body, IMAGES).messages == (said,)
    reply = ModelReply(said, Finish.TOOL_CALLS, model="m")
    assert DIALECTS[name].read_reply(DIALECTS[name].write_reply(reply, asking(reply))).message == said
    assert reply_of(read_cut(name, stream_of(name, reply), [])).message == said


@each_dialect
@law
@given(data=st.data())
def test_a_reply_is_read_as_it_was_written(name, data):
    reply = data.draw(model_replies(name))
    assert plain(DIALECTS[name].read_reply(DIALECTS[name].write_reply(reply, asking(reply)))) == plain(reply)


@each_dialect
@law
@given(data=st.data())
def test_a_stream_gives_the_reply_that_a_whole_body_gives(name, data):
    reply = data.draw(model_replies(name))
    assert plain(reply_of(read_cut(name, stream_of(name, reply), []))) == plain(reply)


@each_dialect
@law
@given(data=st.data(), cuts=st.lists(st.integers(0, 10**5), max_size=12))
def test_chunk_borders_change_nothing(name, data, cuts):
    body = stream_of(name, data.draw(model_replies(name)))
    if data.draw(st.booleans()):
        body = body.replace(b"\n", b"\r\n")
    body = body.replace(b"data: {", KEEPALIVE + b"data:{", 2)
    assert [_plain_event(event) for event in read_cut(name, body, cuts)] == [
        _plain_event(event) for event in read_cut(name, body, [])
    ]


@each_dialect
@settings(max_examples=10)
@given(data=st.data())
def test_a_stream_in_single_bytes_is_the_same_stream(name, data):
    reply = data.draw(model_replies(name))
    body = stream_of(name, reply)
    assert plain(reply_of(read_cut(name, body, list(range(len(body)))))) == plain(reply)


def _plain_event(event):
    return plain(reply_of([event])) if isinstance(event, End) else event


@each_dialect
@law
@given(data=st.data())
def test_a_stream_cut_anywhere_before_its_end_is_an_error(name, data):
    body = stream_of(name, data.draw(model_replies(name)))
    reader = DIALECTS[name].stream_reader()
    # The blank line completes the last event, so cutting any of its bytes but the last newline loses it.
    events = reader.feed(body[: data.draw(st.integers(0, len(body) - 1))])
    assert not any(isinstance(event, End) for event in events)
    with pytest.raises(WireError, match="cut before its end"):
        reader.close()


@st.composite
def interleaved(draw):
    """The deltas of parallel tool calls, in any order that keeps each call's own."""
    written = st.sampled_from(["", "{}", '{"a": {"b": [1, 2]}}', '{"a": "}{"}', '{"a"', "no json"])
    pieces = {index: _cut(draw(written), draw(st.integers(1, 5))) for index in range(3)}
    events = [ToolCallDelta(index, "", f"id{index}", f"tool{index}") for index in pieces]
    order = draw(st.permutations([index for index, text in pieces.items() for _ in text]))
    return events + [ToolCallDelta(index, pieces[index].pop(0)) for index in order]


def _cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@each_dialect
@law
@given(tools=interleaved())
def test_interleaved_tool_calls_arrive_whole(name, tools):
    events = [ReasoningDelta("hm"), TextDelta("hi"), *tools, End(Finish.TOOL_CALLS, model="m")]
    whole = reply_of(events)
    calls = {call.id: call for call in whole.message.tool_calls}
    if name == "messages":
        # No arguments at all are an empty object there.
        calls = {id: msgspec.structs.replace(call, arguments=call.arguments or "{}") for id, call in calls.items()}
    again = reply_of(read_cut(name, spoken(name, events, asking(whole)), []))
    assert {call.id: call for call in again.message.tool_calls} == calls
    assert again.message.text == "hi"
    assert again.message.reasoning == "hm"


def renamed(call):
    """Images and tools survive; extras do not go into another dialect."""
    return msgspec.structs.replace(call, extra={}, stream=False, return_tokens=False)


@pytest.mark.parametrize("source", NAMES)
@pytest.mark.parametrize("target", NAMES)
@settings(max_examples=8)
@given(data=st.data())
def test_any_dialect_is_served_from_any_engine(source, target, data):
    """The visible answer and the tools survive the way from one dialect's engine to another dialect's client."""
    reply = data.draw(model_replies(source))
    relayed = reply_of(events_of(DIALECTS[source].read_reply(DIALECTS[source].write_reply(reply, asking(reply)))))
    served = reply_of(read_cut(target, stream_of(target, relayed), []))
    assert served.message.text == reply.message.text
    assert served.message.reasoning == reply.message.reasoning
    assert [(c.id, c.name, c.arguments) for c in served.message.tool_calls] == [
        (c.id, c.name, c.arguments) for c in reply.message.tool_calls
    ]
    assert served.usage == reply.usage


@pytest.mark.parametrize("source", NAMES)
@pytest.mark.parametrize("target", NAMES)
@settings(max_examples=8)
@given(data=st.data())
def test_a_call_crosses_dialects(source, target, data):
    call = renamed(data.draw(model_calls(source)))
    again = DIALECTS[target].read_request(DIALECTS[target].write_request(call, IMAGES), IMAGES)
    assert again.tools == call.tools
    assert [m.text for m in again.messages if m.role == "user"] == [m.text for m in call.messages if m.role == "user"]
    assert _results(again) == _results(call)


def _results(call):
    return [
        (part.call_id, part.content) for message in call.messages for part in message.parts if hasattr(part, "call_id")
    ]
