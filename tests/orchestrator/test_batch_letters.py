"""A batch in chunks, without a socket: whatever the line does to letters, the trainer ends with the same bytes."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.test_batch_files import depot_of
from rollwright.orchestrator.transports.desk import Desk
from rollwright.orchestrator.transports.files import batch_path
from rollwright.orchestrator.transports.letters import (
    Ack,
    Chunk,
    Fetch,
    Hello,
    Refused,
    Standing,
    read_answer,
    read_request,
    write_letter,
)
from rollwright.orchestrator.transports.pull import SILENCE_S, Pull
from rollwright.wire import WireError


@pytest.fixture(scope="module")
def depot(tmp_path_factory):
    return depot_of(tmp_path_factory.mktemp("depot"), 1, 2, 3)


def answer(desk: Desk, request) -> tuple:
    head, *payload = desk.answer(write_letter(request))
    return read_answer(head), *payload


@given(st.data(), st.integers(200, 2000), st.integers(1, 5))
def test_whatever_is_lost_late_or_doubled_the_bytes_are_those_of_the_file(depot, data, chunk_bytes, ahead):
    step = data.draw(st.integers(1, 3))
    pull = Pull(step, itertools.count(), chunk_bytes=chunk_bytes, ahead=ahead)
    line: list[tuple] = []
    now = 0.0
    trouble = data.draw(st.integers(0, 30))
    while not pull.whole:
        asks = [Fetch(part.number, "", step, part.offset, part.length) for part in pull.asks(now)]
        line += [answer(Desk(depot, ""), ask) for ask in asks]
        assert len(pull.on_their_way) <= ahead
        what = data.draw(st.sampled_from(["take", "drop", "double", "cut", "silence"])) if trouble else "take"
        trouble -= what != "take"
        if what == "cut":
            pull.lose()
        elif what == "silence":
            now += SILENCE_S
        elif line:
            letter = line.pop(data.draw(st.integers(0, len(line) - 1)) if what != "take" else 0)
            if what == "double":
                line.append(letter)
            if what != "drop":
                pull.take(*letter, now)
        else:
            now += SILENCE_S
    assert pull.bytes() == batch_path(depot.directory, step).read_bytes()


def test_the_line_is_kept_busy_and_no_busier(depot):
    pull = Pull(1, itertools.count(), chunk_bytes=64, ahead=3)
    (first,) = pull.asks(0.0)
    assert (first.offset, pull.asks(0.0)) == (0, [])
    pull.take(*answer(Desk(depot, ""), Fetch(first.number, "", 1, 0, 64)), 0.0)
    assert [part.offset for part in pull.asks(0.0)] == [64, 128, 192]
    assert pull.asks(SILENCE_S - 0.1) == []
    assert sorted(part.offset for part in pull.asks(SILENCE_S)) == [64, 128, 192]


def test_a_slow_line_is_no_silent_one(depot):
    """Whatever comes shows that the rest is on its way, or a slow line would be asked for everything twice."""
    pull = Pull(1, itertools.count(), chunk_bytes=64, ahead=3)
    (first,) = pull.asks(0.0)
    pull.take(*answer(Desk(depot, ""), Fetch(first.number, "", 1, 0, 64)), 0.0)
    parts, now = pull.asks(0.0), 0.0
    for part in parts:
        now += 0.9 * SILENCE_S
        pull.take(*answer(Desk(depot, ""), Fetch(part.number, "", 1, part.offset, 64)), now)
        assert all(other.offset >= 256 for other in pull.asks(now))


@pytest.mark.parametrize(
    "change",
    [{"total": 7}, {"total": 2**60}, {"total": -1}, {"offset": 1}, {"step": 2}],
    ids=lambda change: str(change),
)
def test_a_chunk_that_lies_is_refused(depot, change):
    pull = Pull(1, itertools.count(), chunk_bytes=64)
    (first,) = pull.asks(0.0)
    chunk, payload = answer(Desk(depot, ""), Fetch(first.number, "", 1, 0, 64))
    with pytest.raises(WireError):
        pull.take(msgspec.structs.replace(chunk, **change), payload, 0.0)


def test_a_chunk_of_another_length_is_refused(depot):
    pull = Pull(1, itertools.count(), chunk_bytes=64)
    (first,) = pull.asks(0.0)
    chunk, payload = answer(Desk(depot, ""), Fetch(first.number, "", 1, 0, 64))
    with pytest.raises(WireError, match="63 bytes"):
        pull.take(chunk, payload[:63], 0.0)


def test_the_desk_tells_how_things_stand(tmp_path):
    depot = depot_of(tmp_path, 1, 2)
    desk = Desk(depot, "t")
    assert answer(desk, Hello(5, "t")) == (Standing(5, 0, 2),)
    assert answer(desk, Fetch(6, "t", 3, 0, 10)) == (Standing(6, 0, 2),)
    assert answer(desk, Fetch(7, "t", 0, 0, 10)) == (Standing(7, 0, 2),)
    assert answer(desk, Ack(8, "t", 1)) == (Standing(8, 1, 2),)
    depot.release(1)
    assert answer(desk, Fetch(9, "t", 1, 0, 10)) == (Refused(9, "gone"),)
    total = batch_path(tmp_path, 2).stat().st_size
    chunk, payload = answer(desk, Fetch(10, "t", 2, total - 4, 10))
    assert (chunk, bytes(payload)) == (Chunk(10, 2, total - 4, total), batch_path(tmp_path, 2).read_bytes()[-4:])


@pytest.mark.parametrize(
    "request_", [Hello(1, "x"), Ack(1, "", 1), Fetch(1, "tt", 1, 0, 1)], ids=lambda r: type(r).__name__
)
def test_whoever_does_not_know_the_token_learns_and_changes_nothing(depot, request_):
    assert answer(Desk(depot, "t"), request_) == (Refused(1, "token"),)
    assert depot.acked == 0


@pytest.mark.parametrize(("offset", "length"), [(-1, 5), (0, 0), (0, -5), (2**40, 5), (2**63, 1)])
def test_a_chunk_that_is_nowhere_is_refused(depot, offset, length):
    assert answer(Desk(depot, ""), Fetch(1, "", 1, offset, length)) == (Refused(1, "malformed"),)


def test_a_file_that_went_while_it_was_asked_for_is_gone(tmp_path):
    depot = depot_of(tmp_path, 1)
    batch_path(tmp_path, 1).unlink()
    assert answer(Desk(depot, ""), Fetch(1, "", 1, 0, 5)) == (Refused(1, "gone"),)


@given(st.binary(max_size=60))
def test_random_bytes_get_a_typed_error(depot, raw):
    for read in (read_request, read_answer):
        with pytest.raises(WireError):
            read(raw)
    assert read_answer(Desk(depot, "t").answer(raw)[0]) == Refused(-1, "malformed")


@given(st.integers(-(2**63), 2**63 - 1), st.text(max_size=9), st.integers(0, 99))
def test_letters_come_back_as_they_were_written(number, token, step):
    for request in (Hello(number, token), Ack(number, token, step), Fetch(number, token, step, 1, 2)):
        assert read_request(write_letter(request)) == request
    for reply in (Standing(number, step, 1), Chunk(number, step, 0, 9), Refused(number, "gone")):
        assert read_answer(write_letter(reply)) == reply


def test_a_step_is_not_asked_for_twice_by_one_who_has_it(depot):
    """Doubles of a part that is there are dropped by their number, so nothing is written over."""
    pull = Pull(1, itertools.count(), chunk_bytes=2**20)
    (first,) = pull.asks(0.0)
    chunk, payload = answer(Desk(depot, ""), Fetch(first.number, "", 1, 0, 2**20))
    pull.take(chunk, payload, 0.0)
    pull.take(chunk, b"x" * len(payload), 0.0)
    assert (pull.whole, pull.asks(99.0)) == (True, [])
    assert pull.bytes() == batch_path(depot.directory, 1).read_bytes()
