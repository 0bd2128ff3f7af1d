"""Requests of one rollout read from where they differ: whatever a program does to its history, the result is the one of
reading each request on its own."""

from __future__ import annotations

import base64
import json
import os
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialects.cases import IMAGES, NAMES, json_values, model_calls, names
from rollwright.dialects import DIALECTS, Hashes, ImageStore, Tails, imagestore
from rollwright.wire import Message, ModelCall, Text, ToolCall, WireError, assistant, tool_result, user

each_dialect = pytest.mark.parametrize("name", NAMES)
LISTS = {"chat": "messages", "responses": "input", "messages": "messages"}
SHOTS = [os.urandom(3500), os.urandom(4000), os.urandom(6000)]
"""Large enough to be cut out of the text."""


def write(name: str, call: ModelCall, images) -> dict:
    return json.loads(DIALECTS[name].write_request(call, images))


def serialise(body: dict, style: dict, reverse: bool) -> bytes:
    if reverse:
        body = dict(reversed(body.items()))
    return json.dumps(body, **style).encode("utf-8", "replace")


styles = st.sampled_from(
    [{"separators": (",", ":")}, {}, {"indent": 1}, {"ensure_ascii": False}, {"separators": ("\t,\n", " :\r")}]
)


cut_places = st.lists(st.integers(0, 10**5), max_size=4)


@st.composite
def edits(draw):
    """What a program may do to its request before it sends it again."""
    kinds = ["grow", "grow", "grow", "drop", "swap", "replace", "mark", "unmark", "setting", "style", "order", "same"]
    return draw(st.sampled_from(kinds)), draw(st.integers(0, 50)), draw(names), draw(json_values)


def edited(body: dict, spare: list, edit, listed: str) -> dict:
    kind, at, word, value = edit
    elements = list(body[listed])
    at = at % max(len(elements), 1)
    if kind == "grow" and spare:
        elements += [spare.pop(0) for _ in range(min(len(spare), 2))]
    elif kind == "drop":
        del elements[at : at + 1]
    elif kind == "swap":
        elements.reverse()
    elif kind == "replace" and elements and spare:
        elements[at] = spare[0]
    elif kind == "mark" and elements:
        elements[-1] = {**elements[-1], "x_" + word: value}
    elif kind == "unmark":
        elements = [{key: inner for key, inner in one.items() if not key.startswith("x_")} for one in elements]
    elif kind == "setting":
        body = {**body, "y_" + word: value}
    return {**body, listed: elements}


def outcome(read):
    try:
        return read(), None
    except WireError as error:
        return None, str(error)


def fed(tails: Tails, name: str, body: bytes, cuts: list[int]):
    intake = tails.intake(DIALECTS[name].form)
    borders = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    for a, b in pairwise(borders):
        intake.feed(body[a:b])
    return intake.finish()


def agree(tails: Tails, name: str, body: bytes, cuts: list[int], seen: list[Message], images):
    """Read one request both ways, and see that they agree in what they say, in what is passed on, and in errors."""
    expected, trouble = outcome(lambda: DIALECTS[name].read_request(body, images))
    reading, told = outcome(lambda: fed(tails, name, body, cuts))
    assert told == trouble
    if reading is None:
        return None
    call, shared = reading
    assert call == expected
    assert write(name, call, images) == write(name, expected, images)
    assert all(any(message is other for other in seen) for message in call.messages[:shared])
    seen += call.messages[shared:]
    return reading


@each_dialect
@settings(max_examples=20)
@given(data=st.data())
def test_reading_from_a_difference_on_is_reading_the_whole(name, data):
    with ImageStore(data.draw(st.sampled_from([0, 9000, 2**20]))) as images:
        shots = [Message("user", (images.put(shot, "image/png"),)) for shot in SHOTS]
        drawn = data.draw(model_calls(name))
        body = write(name, drawn, IMAGES)
        spare = write(name, data.draw(model_calls(name)), IMAGES)[LISTS[name]]
        spare += write(name, ModelCall("m", tuple(data.draw(st.permutations(shots)))), images)[LISTS[name]]
        style, reverse = data.draw(styles), False
        tails, seen = Tails(images), []
        for _ in range(data.draw(st.integers(1, 7))):
            agree(tails, name, serialise(body, style, reverse), data.draw(cut_places), seen, images)
            edit = data.draw(edits())
            style = data.draw(styles) if edit[0] == "style" else style
            reverse = reverse != (edit[0] == "order")
            body = edited(body, spare, edit, LISTS[name])
        agree(tails, name, serialise(body, style, reverse), [], seen, images)


@each_dialect
@settings(max_examples=20)
@given(data=st.data())
def test_a_body_that_was_spoiled_is_refused_in_the_same_words(name, data):
    with ImageStore() as images:
        body = serialise(write(name, data.draw(model_calls(name)), IMAGES), {}, False)
        tails, seen = Tails(images), []
        agree(tails, name, body, [], seen, images)
        at = data.draw(st.integers(0, len(body) - 1))
        junk = data.draw(
            st.sampled_from([b"", b",", b"]", b"}", b'"', b"{}", b"0", b"\\", b'"messages":[{}],', b"\xff"])
        )
        cut = data.draw(st.integers(0, 3))
        agree(tails, name, body[:at] + junk + body[at + cut :], data.draw(cut_places), seen, images)


def grown(name: str, turns: int) -> list[bytes]:
    """The requests of a program that calls a tool, turn after turn."""
    said: tuple[Message, ...] = (user("go"),)
    bodies = []
    for turn in range(turns):
        bodies.append(DIALECTS[name].write_request(ModelCall("m", said), Hashes()))
        called = assistant(f"step {turn}", ToolCall(f"c{turn}", "bash", '{"command":"ls"}'))
        said += (called, tool_result(f"c{turn}", f"result {turn} " + "x" * 100))
    return bodies


@each_dialect
def test_a_turn_parses_what_it_adds(name, monkeypatch):
    form = DIALECTS[name].form
    parsed: list[int] = []
    original = form.groups
    monkeypatch.setattr(
        form, "groups", lambda elements, *more: parsed.append(len(elements)) or original(elements, *more), raising=False
    )
    tails = Tails(Hashes())
    for body in grown(name, 30):
        call, shared = tails.read(form, body)
        assert call.messages[0].text == "go"
    assert max(parsed) <= 4
    assert shared >= len(call.messages) - 3
    assert repr(tails).startswith("<Tails 1 requests")


def test_conversations_side_by_side_are_each_continued():
    form = DIALECTS["chat"].form
    tails = Tails(Hashes())
    long = [{"role": "user", "content": "x" * 200} for _ in range(1000)]
    first = [{"role": "system", "content": "A"}, *long]
    second = [{"role": "system", "content": "B"}, *long]
    for turn in range(4):
        for talk in (first, second):
            talk.append({"role": "user", "content": f"turn {turn}"})
            call, shared = tails.read(form, json.dumps({"model": "m", "messages": talk}).encode())
            assert call.messages[-1] == user(f"turn {turn}")
            assert shared == (len(talk) - 1 if turn else 0)
    assert repr(tails).startswith("<Tails 2 requests")


def test_two_requests_that_arrive_together_do_not_disturb_each_other():
    form = DIALECTS["chat"].form
    tails = Tails(Hashes())
    talk = [{"role": "user", "content": "x" * 50} for _ in range(10)]

    def body(last: str) -> bytes:
        return json.dumps({"model": "m", "messages": [*talk, {"role": "user", "content": last}]}).encode()

    tails.read(form, json.dumps({"model": "m", "messages": talk}).encode())
    intakes = {last: tails.intake(form) for last in ("a", "bb", "ccc")}
    for at in range(0, 2000, 37):
        for last, intake in intakes.items():
            intake.feed(body(last)[at : at + 37])
    readings = {last: intake.finish() for last, intake in intakes.items()}
    for last, (call, shared) in readings.items():
        assert call.messages == (*(user("x" * 50),) * 10, user(last))
        assert shared == 10
        assert write("chat", call, Hashes())["messages"] == json.loads(body(last))["messages"]


def test_what_is_remembered_has_a_budget_and_an_end():
    form = DIALECTS["chat"].form
    tails = Tails(Hashes(), budget_bytes=5000)
    for number in range(30):
        tails.read(
            form, json.dumps({"model": f"m{number}", "messages": [{"role": "user", "content": "x" * 1000}]}).encode()
        )
        assert tails.kept_bytes <= 5000
    call, _ = tails.read(
        form, json.dumps({"model": "m", "messages": [{"role": "user", "content": "y" * 9000}]}).encode()
    )
    assert tails.kept_bytes == 0
    tails.close()
    assert call.messages == (user("y" * 9000),)
    assert b"y" * 9000 in DIALECTS["chat"].write_request(call, Hashes())


def shot_request(shots: list[str], **more) -> bytes:
    urls = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{shot}", **more}} for shot in shots]
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": [url]} for url in urls]}).encode()


@pytest.mark.parametrize("budget", [0, 2**30], ids=["on disk", "in memory"])
def test_images_that_were_seen_are_not_decoded_again(budget, monkeypatch):
    decoded = []
    original = imagestore.decode
    monkeypatch.setattr(imagestore, "decode", lambda text, kind: decoded.append(len(text)) or original(text, kind))
    shots = [base64.b64encode(os.urandom(20_000)).decode() for _ in range(12)]
    with ImageStore(budget) as store:
        hold = store.hold()
        tails = Tails(hold)
        for turn in range(1, 13):
            body = shot_request(shots[:turn], detail="low")
            call = tails.read(DIALECTS["chat"].form, body).call
            assert write("chat", call, hold)["messages"] == json.loads(body)["messages"]
        assert len(decoded) == 12
        assert tails.kept_bytes < 3000
        other = shot_request([*shots[:5], shots[5][:-8] + "AAAAAAAA", *shots[6:]], detail="low")
        assert tails.read(DIALECTS["chat"].form, other).call == DIALECTS["chat"].read_request(other, hold)
        hold.close()
        assert len(store) == 0


def test_an_image_whose_base64_is_written_with_escapes_stays_in_the_text():
    shot = base64.b64encode(b"\xff" * 6000).decode()
    body = shot_request([shot]).replace(b"/", b"\\/")
    with ImageStore() as images:
        tails = Tails(images)
        call = tails.read(DIALECTS["chat"].form, body).call
        assert images.get(call.messages[0].parts[0]) == b"\xff" * 6000
        assert write("chat", call, images)["messages"] == json.loads(body)["messages"]
        assert tails.read(DIALECTS["chat"].form, body).shared == 1


def test_the_echo_of_a_call_is_the_call_that_was_sampled():
    sampled = assistant("", ToolCall("1", "f", '{"a": 1.0, "b": [true]}'), ToolCall("2", "g", ""))
    tails = Tails(Hashes())
    tails.said(sampled)
    blocks = [
        {"type": "tool_use", "id": "1", "name": "f", "input": {"b": [True], "a": 1}},
        {"type": "tool_use", "id": "2", "name": "g", "input": {}},
    ]
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "assistant", "content": blocks}]}
    assert tails.read(DIALECTS["messages"].form, json.dumps(body).encode()).call.messages == (sampled,)
    blocks[0]["input"]["a"] = 2
    changed = tails.read(DIALECTS["messages"].form, json.dumps(body).encode()).call.messages[0]
    assert changed.tool_calls[0].arguments == '{"b": [true], "a": 2}'


def items_of(*calls: str) -> list[dict]:
    made = [{"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"} for id in calls]
    heard = [{"type": "function_call_output", "call_id": id, "output": f"out {id}"} for id in calls]
    return [item for pair in zip(made, heard, strict=True) for item in pair]


def test_calls_and_outputs_in_turn_are_the_answer_that_made_them():
    """Calls of one answer are one message however they are interleaved; calls of two answers stay two."""
    form = DIALECTS["responses"].form
    together = assistant("hi", ToolCall("1", "f", "{}"), ToolCall("2", "f", "{}"))
    tails = Tails(Hashes())
    tails.said(together)
    tails.said(assistant("", ToolCall("3", "f", "{}")))
    words = {"role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
    items = [{"role": "user", "content": "go"}, words, *items_of("1", "2"), *items_of("3")]
    for _ in range(2):
        call = tails.read(form, json.dumps({"model": "m", "input": items}).encode()).call
        assert call.messages == (
            user("go"),
            together,
            tool_result("1", "out 1"),
            tool_result("2", "out 2"),
            assistant("", ToolCall("3", "f", "{}")),
            tool_result("3", "out 3"),
        )
        assert write("responses", call, Hashes())["input"] == items
        items = [*items, {"role": "user", "content": "more"}][:8]


def test_half_of_an_answer_is_read_again_when_the_rest_comes():
    form = DIALECTS["responses"].form
    tails = Tails(Hashes())
    tails.said(assistant("", ToolCall("1", "f", "{}"), ToolCall("2", "f", "{}")))
    half, whole = items_of("1"), items_of("1", "2")
    first = tails.read(form, json.dumps({"model": "m", "input": half}).encode())
    second = tails.read(form, json.dumps({"model": "m", "input": whole}).encode())
    assert len(first.call.messages[0].tool_calls) == 1
    assert len(second.call.messages[0].tool_calls) == 2
    assert second.shared == 0


def test_a_field_that_comes_twice_is_refused():
    twice = b'{"model":"m","messages":[],"messages":[{"role":"user","content":"x"}]}'
    tails = Tails(Hashes())
    for body in (twice, twice.replace(b"[],", b'[{"role":"user","content":"y"}],')):
        with pytest.raises(WireError, match="names a field twice"):
            DIALECTS["chat"].read_request(body, Hashes())
        tails.read(DIALECTS["chat"].form, b'{"model":"m","messages":[{"role":"user","content":"y"}]}')
        with pytest.raises(WireError, match="names a field twice"):
            tails.read(DIALECTS["chat"].form, body)


def test_a_changed_message_is_written_anew_among_those_that_stay():
    elements = [{"role": "user", "content": "a", "name": "ann"}, {"role": "user", "content": "b", "name": "bob"}]
    call = DIALECTS["chat"].read_request(json.dumps({"model": "m", "messages": elements}).encode(), Hashes())
    edited_call = ModelCall(
        "m", (call.messages[0], Message("user", (Text("new"),)), call.messages[1]), dialect="chat", source=call.source
    )
    written = write("chat", edited_call, Hashes())["messages"]
    assert written == [elements[0], {"role": "user", "content": "new"}, elements[1]]
    foreign = write("messages", edited_call, Hashes())["messages"]
    assert "name" not in foreign[0]


def test_an_answer_that_another_request_goes_on_with_is_read_as_one():
    """What followed an answer in an earlier request says nothing of what may follow it in a later one."""

    def body(*said):
        items = [{"type": "message", "role": role, "content": text} for role, text in said]
        return json.dumps({"model": "m", "input": items}).encode()

    form, tails = DIALECTS["responses"].form, Tails(Hashes())
    tails.read(form, body(("user", "Begin."), ("assistant", "one"), ("user", "more")))
    later = body(("user", "Begin."), ("assistant", "one"), ("assistant", "two"))
    assert tails.read(form, later).call.messages == DIALECTS["responses"].read_request(later, Hashes()).messages
