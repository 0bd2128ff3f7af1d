"""Long bodies are outlined a slice at a time: the same call and the same words as from the whole, however they are cut,
and no step that grows with the body."""

from __future__ import annotations

import json
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialects.cases import IMAGES, model_calls
from dialects.test_tails import LISTS, agree, cut_places, each_dialect, edited, edits, outcome, serialise, styles, write
from rollwright.dialects import DIALECTS, ImageStore, Tails, outlines, slices
from rollwright.dialects.responses import request as responses
from rollwright.dialects.steps import STEP_BYTES

step_sizes = st.integers(8, 400)


def in_steps_of(size: int):
    return mock.patch.object(slices, "STEP_BYTES", size)


@each_dialect
@settings(max_examples=25)
@given(data=st.data(), size=step_sizes)
def test_slices_are_the_whole(name, data, size):
    """A first request, and one that goes on from it."""
    with ImageStore() as images, in_steps_of(size):
        body = write(name, data.draw(model_calls(name)), IMAGES)
        spare = write(name, data.draw(model_calls(name)), IMAGES)[LISTS[name]]
        style, tails, seen = data.draw(styles), Tails(images), []
        reverse = data.draw(st.booleans())
        for _ in range(3):
            agree(tails, name, serialise(body, style, reverse), data.draw(cut_places), seen, images)
            body = edited(body, spare, data.draw(edits()), LISTS[name])


@each_dialect
@settings(max_examples=25)
@given(data=st.data(), size=step_sizes)
def test_spoiled_slices_are_refused_in_the_words_of_the_whole(name, data, size):
    with ImageStore() as images, in_steps_of(size):
        body = serialise(write(name, data.draw(model_calls(name)), IMAGES), data.draw(styles), False)
        at, cut = data.draw(st.integers(0, len(body) - 1)), data.draw(st.integers(0, 3))
        junk = data.draw(st.sampled_from([b"", b",", b"]", b"}", b'"', b"{}", b'},{"', b"]]", b"\\", b"\xff", b"\n"]))
        agree(Tails(images), name, body[:at] + junk + body[at + cut :], data.draw(cut_places), [], images)


@each_dialect
@pytest.mark.parametrize("second", [[], [{"role": "user", "content": "no"}], "text", None, 5])
def test_a_list_that_comes_twice_is_what_the_reader_of_the_whole_says(name, second):
    first = json.dumps([{"role": "user", "content": "x" * 50}] * 30)
    field = LISTS[name]
    body = f'{{"model":"m","max_tokens":5,"{field}":{first},"z":1,"{field}":{json.dumps(second)}}}'.encode()
    expected = outcome(lambda: DIALECTS[name].read_request(body, IMAGES))
    with in_steps_of(100):
        read = outcome(lambda: Tails(IMAGES).read(DIALECTS[name].form, body).call)
    assert read == expected


class Counting:
    """A decoder that says how much it is given in one step."""

    def __init__(self, decoder):
        self.decoder, self.bytes = decoder, 0

    def decode(self, text):
        self.bytes += len(memoryview(text))
        return self.decoder.decode(text)


LOOKS_LIKE_JSON = json.dumps([{"path": "a", "size": 1}] * 40)
BODIES = {
    "tiny": ["x"] * (8 * STEP_BYTES // 36),
    "of some KB": ["lorem ipsum " * 400] * (8 * STEP_BYTES // 4800),
    "like JSON": [LOOKS_LIKE_JSON] * (8 * STEP_BYTES // len(LOOKS_LIKE_JSON)),
    "in parts": [[{"type": "text", "text": "word " * 9}] * 20] * (8 * STEP_BYTES // 1500),
}


@each_dialect
@pytest.mark.parametrize("kind", BODIES)
def test_a_step_reads_no_more_of_a_longer_body(name, kind, monkeypatch):
    types = {"responses": "input_text"}
    turns = [{"role": "user", "content": content} for content in BODIES[kind]]
    body = json.dumps({"model": "m", "max_tokens": 5, LISTS[name]: turns})
    data = body.replace('"type": "text"', f'"type": "{types.get(name, "text")}"').encode()
    assert len(data) > 7 * STEP_BYTES
    decoders = [Counting(slices._ELEMENTS), Counting(outlines._FIELDS), Counting(outlines._ELEMENTS)]
    monkeypatch.setattr(slices, "_ELEMENTS", decoders[0])
    monkeypatch.setattr(outlines, "_FIELDS", decoders[1])
    monkeypatch.setattr(outlines, "_ELEMENTS", decoders[2])
    intake = Tails(IMAGES).intake(DIALECTS[name].form)
    intake.feed(data)
    most = read = 0
    for _ in intake.steps():
        step = sum(decoder.bytes for decoder in decoders)
        most, read = max(most, step), read + step
        for decoder in decoders:
            decoder.bytes = 0
    assert most < 6 * STEP_BYTES
    assert read < 6 * len(data), "guesses at borders cost a few tries and no more"


def test_items_are_read_once_each(monkeypatch):
    """Reading a list by its rests is quadratic, and 93,000 items took half a minute."""
    counting = Counting(responses.ITEM_DECODER)
    monkeypatch.setattr(responses, "ITEM_DECODER", counting)
    items = [{"role": ("user", "assistant")[number % 2], "content": "x"} for number in range(999)]
    body = json.dumps({"model": "m", "input": items}).encode()
    assert len(DIALECTS["responses"].read_request(body, IMAGES).messages) == 999
    assert counting.bytes <= len(body)
