"""Long requests are read in steps: the same call as in one go, whoever has a turn in between."""

from __future__ import annotations

import json

import pytest

from dialects.cases import IMAGES
from rollwright.dialects import DIALECTS, Tails
from rollwright.dialects.steps import STEP_BYTES, STEP_ELEMENTS

ALL = sorted(DIALECTS)


def body(dialect: str, first: str, texts: list[str]) -> bytes:
    turns = [
        {"role": "assistant" if number % 2 else "user", "content": text} for number, text in enumerate([first, *texts])
    ]
    if dialect == "responses":
        return json.dumps({"model": "m", "input": turns}).encode()
    return json.dumps({"model": "m", "messages": turns, "max_tokens": 9}).encode()


MANY = [f"word {number}" for number in range(8 * STEP_ELEMENTS)]
LONG = ["line\n" * (STEP_BYTES // 20)] * 40


def intake(tails: Tails, dialect: str, data: bytes):
    one = tails.intake(DIALECTS[dialect].form)
    one.feed(data)
    return one.steps()


@pytest.mark.parametrize("dialect", ALL)
def test_a_short_request_is_one_step(dialect):
    steps = intake(Tails(IMAGES), dialect, body(dialect, "hello", ["yes", "then"]))
    with pytest.raises(StopIteration) as done:
        next(steps)
    assert [message.text for message in done.value.value.call.messages] == ["hello", "yes", "then"]


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize(("texts", "least"), [(MANY, 8), (LONG, 8)], ids=["many", "long"])
def test_a_long_request_is_many_steps_and_the_same_call(dialect, texts, least):
    data = body(dialect, "hello", texts)
    steps, taken = intake(Tails(IMAGES), dialect, data), 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            reading = done.value
            break
        taken += 1
    assert taken >= least
    assert reading.call == DIALECTS[dialect].read_request(data, IMAGES)


@pytest.mark.parametrize("dialect", ALL)
def test_requests_of_one_rollout_that_are_read_in_turns_do_not_mix(dialect):
    """Two at once continue one conversation, each in its own way; a third begins another."""
    tails = Tails(IMAGES)
    begun = body(dialect, "hello", MANY[:101])
    tails.read(DIALECTS[dialect].form, begun)
    bodies = [body(dialect, "hello", [*MANY[:101], f"way {way}", *MANY[way:]]) for way in range(2)]
    bodies.append(body(dialect, "another", MANY))
    running = dict(enumerate(intake(tails, dialect, data) for data in bodies))
    read = {}
    while running:
        for number, steps in list(running.items()):
            try:
                next(steps)
            except StopIteration as done:
                read[number] = done.value.call
                del running[number]
    for number, data in enumerate(bodies):
        assert read[number] == DIALECTS[dialect].read_request(data, IMAGES)
        again = tails.read(DIALECTS[dialect].form, data)
        assert again.call == read[number]
