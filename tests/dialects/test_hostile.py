"""Bytes that lie: one typed error with a sentence, never a crash."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialects.cases import IMAGES, NAMES, asking, model_calls, model_replies, stream_of
from rollwright.dialects import DIALECTS
from rollwright.wire import EngineError, ModelCall, TextDelta, WireError, user

each_dialect = pytest.mark.parametrize("name", NAMES)
BROKEN = [
    b"",
    b"null",
    b"[]",
    b'"x"',
    b"{",
    b"\xff\xfe",
    b'{"model": NaN}',
    b'{"model":"m","messages":"x","input":3}',
    b'{"model":"m","messages":[null],"input":[null]}',
    b'{"model":"m","messages":[[]],"input":[[]]}',
    b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}],"input":"\\ud800"}',
    b'{"model":"m","messages":[{"role":"user","content":"\xff"}],"input":"\xff"}',
    b'{"model":"m","messages":[{"role":"user","content":[{"type":"hologram"}]}]}',
    b'{"model":"m","input":[{"role":"user","content":[{"type":"hologram"}]}]}',
    b'{"model":"m","messages":[],"input":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"model":"m","messages":[],"input":[],"temperature":"hot"}',
    b'{"model":"m","messages":[],"input":[],"tools":[{"type":"function","function":3,"name":3}]}',
    b'{"model":"m","messages":[],"input":[],"stop":[1],"stop_sequences":[1]}',
]


@each_dialect
@pytest.mark.parametrize("body", BROKEN)
def test_a_broken_request_is_refused_with_a_sentence(name, body):
    with pytest.raises(WireError) as caught:
        DIALECTS[name].read_request(body, IMAGES)
    assert 10 < len(str(caught.value)) < 400


@each_dialect
@pytest.mark.parametrize("body", BROKEN)
def test_a_broken_reply_is_refused_with_a_sentence(name, body):
    with pytest.raises(WireError):
        DIALECTS[name].read_reply(body)


def read_all(name: str, body: bytes) -> list:
    reader = DIALECTS[name].stream_reader()
    events = reader.feed(body)
    reader.close()
    return events


def mutilate(body: bytes, draw: st.DataObject) -> bytes:
    """Replace a value somewhere inside by one of another type."""
    value = json.loads(body)
    nodes = list(_nodes(value))
    holder, key = draw.draw(st.sampled_from(nodes))
    holder[key] = draw.draw(st.sampled_from([None, True, 3, -1.5, "x", [], {}, [[]], {"type": "x"}, 2**70]))
    return json.dumps(value).encode()


def _nodes(value):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _nodes(inner)


@each_dialect
@settings(max_examples=25)
@given(data=st.data())
def test_a_wrong_type_anywhere_is_a_wire_error_or_harmless(name, data):
    dialect = DIALECTS[name]
    call = data.draw(model_calls(name))
    reply = data.draw(model_replies(name))
    try:
        assert isinstance(dialect.read_request(mutilate(dialect.write_request(call, IMAGES), data), IMAGES), ModelCall)
    except WireError as error:
        assert str(error)  # noqa: PT017
    try:
        assert dialect.read_reply(mutilate(dialect.write_reply(reply, asking(reply)), data)).message.role == "assistant"
    except (WireError, EngineError) as error:
        assert str(error)  # noqa: PT017


@each_dialect
@settings(max_examples=25)
@given(data=st.data())
def test_a_stream_of_lies_is_a_wire_error_or_harmless(name, data):
    events = stream_of(name, data.draw(model_replies(name))).split(b"\n\n")
    at = data.draw(st.integers(0, len(events) - 1))
    head, brace, payload = events[at].partition(b"{")
    events[at] = head + mutilate(brace + payload, data) if brace else data.draw(st.binary(max_size=30))
    try:
        assert read_all(name, b"\n\n".join(events))
    except (WireError, EngineError) as error:
        assert str(error)  # noqa: PT017


@each_dialect
@given(noise=st.binary(max_size=80))
def test_noise_is_never_an_answer(name, noise):
    with pytest.raises(WireError):
        read_all(name, b"data: " + noise + b"\n\n")


@each_dialect
def test_text_that_json_cannot_say_is_refused_when_written(name):
    dialect = DIALECTS[name]
    with pytest.raises(WireError, match="cannot be written"):
        dialect.write_request(ModelCall("m", (user("\ud800"),)), IMAGES)
    with pytest.raises(WireError, match="cannot be written"):
        dialect.stream_writer(ModelCall("m", ())).write(TextDelta("\ud800"))


def test_too_deep_for_any_peer_is_refused_when_written():
    deep: list = []
    for _ in range(400):
        deep = [deep]
    with pytest.raises(WireError, match="cannot be written"):
        DIALECTS["chat"].write_request(ModelCall("m", (), extra={"x": deep}), IMAGES)
