"""Bundles: what goes in comes out, in order; what is damaged is a WireError and nothing else."""

from typing import get_args

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from rollwright.serve.bundles import LIST_BYTES, MAX_LIST_BYTES, MAX_MESSAGES, SMALL_BYTES, Bundle, buffers, open_bundle
from rollwright.serve.protocol import (
    Arrived,
    Cancel,
    Done,
    Drop,
    FromClient,
    FromWorker,
    Part,
    Run,
    Submit,
    ToClient,
    ToWorker,
    Voided,
)
from rollwright.wire import WireError

MESSAGES = {
    FromClient: [Submit(1, 2, "label", 3.0, "broker", together=True), Cancel(7)],
    ToClient: [Part(1, 0, True), Done(2), Voided(3)],
    ToWorker: [Run(3, 4.0, (1, 2)), Drop(9)],
    FromWorker: [Arrived(1, "token", 0, 1, 64), Part(1, 2), Done(3)],
}
SIZES = st.sampled_from([0, 1, 100, SMALL_BYTES, SMALL_BYTES + 1, 3 * SMALL_BYTES])


def frames_of(sent):
    return [zmq.Frame(bytes(frame)) for frame in sent]


def bundled(messages):
    """What is sent for these messages: bundles, each taken when it is full."""
    sent, bundle = [], Bundle()
    for envelope, frames in messages:
        bundle.add(envelope, frames)
        if bundle.full:
            sent.append(bundle.take())
    return [*sent, bundle.take()] if bundle else sent


@given(st.data(), st.sampled_from(list(MESSAGES)))
def test_what_goes_in_comes_out_in_order(data, kind):
    message = st.tuples(st.sampled_from(MESSAGES[kind]), st.lists(SIZES, max_size=4))
    chosen = data.draw(st.lists(message, max_size=80))
    messages = [(said, [bytes([n % 251]) * size for n, size in enumerate(sizes)]) for said, sizes in chosen]
    sent = bundled(messages)
    came = [item for frames in sent for item in open_bundle(frames_of(frames), kind)]
    assert [(said, [bytes(frame) for frame in buffers(frames)]) for said, frames in came] == messages
    for frames in sent:
        # A message with raw frames is the last of its bundle, so that it keeps no other waiting.
        raw = [
            any(isinstance(one, zmq.Frame) for one in carried) for _, carried in open_bundle(frames_of(frames), kind)
        ]
        assert not any(raw[:-1])
        assert len(raw) <= MAX_MESSAGES


def test_many_small_frames_of_one_message_stay_under_the_limit_of_a_list():
    count = 2 * LIST_BYTES // SMALL_BYTES
    (frames,) = bundled([(Part(1, 0), [bytes(SMALL_BYTES)] * count)])
    assert len(frames[0]) < MAX_LIST_BYTES
    ((said, carried),) = open_bundle(frames_of(frames), ToClient)
    assert (said, len(carried)) == (Part(1, 0), count)


@given(st.lists(st.binary(max_size=200), max_size=4), st.sampled_from(list(MESSAGES)))
def test_bytes_are_a_bundle_or_a_wire_error(frames, kind):
    try:
        messages = open_bundle(frames_of(frames), kind)
    except WireError:
        return
    assert all(type(said) in get_args(kind) for said, _ in messages)


@given(st.sampled_from(list(MESSAGES)), st.integers(0, 400), st.integers(0, 255), st.integers(-1, 1))
def test_a_damaged_bundle_is_a_wire_error_or_another_bundle(kind, place, byte, extra):
    frames = bundled([(said, [b"small", bytes(SMALL_BYTES + 1)]) for said in MESSAGES[kind]])[0]
    damaged = bytearray(frames[0])
    damaged[place % len(damaged)] = byte
    rest = frames[1:] if not extra else frames[1:] * 2 if extra > 0 else []
    try:
        messages = open_bundle(frames_of([damaged, *rest]), kind)
    except WireError:
        return
    assert sum(isinstance(frame, zmq.Frame) for _, carried in messages for frame in carried) == len(rest)


def test_a_list_that_is_too_long_is_refused_unread():
    with pytest.raises(WireError, match="over the limit"):
        open_bundle([zmq.Frame(bytes(MAX_LIST_BYTES + 1))], FromClient)
    with pytest.raises(WireError, match="needs an envelope"):
        open_bundle([], FromClient)
