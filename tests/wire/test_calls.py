"""Events fold into a reply, however they were cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.wire import (
    End,
    Finish,
    Message,
    ModelReply,
    Reasoning,
    ReasoningDelta,
    ReplyBuilder,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
    WireError,
    events_of,
    reply_of,
)

spoken = st.one_of(
    st.builds(Text, st.text(min_size=1, max_size=20)),
    st.builds(Reasoning, st.text(min_size=1, max_size=20), st.just("")),
    st.builds(ToolCall, st.text(min_size=1, max_size=5), st.text(min_size=1, max_size=5), st.text(max_size=20)),
)


@st.composite
def replies(draw):
    parts = []
    for part in draw(st.lists(spoken, max_size=5)):
        # Two texts in a row are one text once they are a stream.
        if not parts or type(parts[-1]) is not type(part) or isinstance(part, ToolCall):
            parts.append(part)
    return ModelReply(Message("assistant", tuple(parts)), draw(st.sampled_from(Finish)), Usage(1, 2), model="m")


@given(replies())
def test_a_reply_survives_its_events(reply):
    assert reply_of(events_of(reply)) == reply


@given(replies(), st.randoms(use_true_random=False))
def test_cutting_deltas_changes_nothing(reply, rng):
    events = []
    for event in events_of(reply):
        if isinstance(event, TextDelta):
            events += [TextDelta(letter) for letter in event.text]
        elif isinstance(event, ReasoningDelta):
            events += [ReasoningDelta(letter) for letter in event.text]
        elif isinstance(event, ToolCallDelta):
            cut = rng.randint(0, len(event.arguments))
            events.append(ToolCallDelta(event.index, event.arguments[:cut], event.id, event.name))
            events.append(ToolCallDelta(event.index, event.arguments[cut:]))
        else:
            events.append(event)
    assert reply_of(events) == reply


def test_parallel_tool_calls_may_interleave():
    events = [
        ToolCallDelta(0, "{", "a", "f"),
        ToolCallDelta(1, "[", "b", "g"),
        ToolCallDelta(0, "}"),
        ToolCallDelta(1, "]"),
        End(Finish.TOOL_CALLS),
    ]
    assert reply_of(events).message.tool_calls == (ToolCall("a", "f", "{}"), ToolCall("b", "g", "[]"))


def test_a_signature_at_the_end_of_a_thought_is_kept():
    events = [ReasoningDelta("a"), ReasoningDelta("b"), ReasoningDelta("", "sig"), End(Finish.STOP)]
    assert reply_of(events).message.parts == (Reasoning("ab", "sig"),)


def test_two_signed_thoughts_stay_two():
    events = [
        ReasoningDelta("a"),
        ReasoningDelta("", "s1"),
        ReasoningDelta("b"),
        ReasoningDelta("", "s2"),
        End(Finish.STOP),
    ]
    assert reply_of(events).message.parts == (Reasoning("a", "s1"), Reasoning("b", "s2"))


def test_a_cut_stream_is_not_a_reply():
    builder = ReplyBuilder()
    builder.apply(TextDelta("half"))
    assert builder.message().text == "half"
    with pytest.raises(WireError, match="cut"):
        builder.reply()


def test_nothing_follows_the_end():
    builder = ReplyBuilder()
    builder.apply(End(Finish.STOP))
    with pytest.raises(WireError):
        builder.apply(TextDelta("late"))
