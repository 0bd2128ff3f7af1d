"""The codec: bit-exact, without copies, and calm about hostile frames."""

import contextlib
import functools
import json
import subprocess
import sys
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rollwright.wire import TokenSegment, ToolSpec, Trace, WireError
from rollwright.wire.codec import ArrayRef, decode, decode_json, encode, encode_json, raw_bytes, view_of
from strategies import same, traces


@given(traces)
def test_a_trace_comes_back_bit_for_bit(trace):
    assert same(decode(encode(trace), Trace), trace)
    text, frames = encode_json(trace)
    assert same(decode_json(text, frames, Trace), trace)


@given(traces)
def test_frames_may_travel_as_any_buffer(trace):
    frames = [memoryview(bytearray(frame)) for frame in encode(trace)]
    assert same(decode(frames, Trace), trace)


def test_neither_way_copies_an_array():
    ids = np.arange(1000, dtype=np.int32)
    segment = TokenSegment(-1, ids, np.zeros(1000, np.bool_), np.zeros(1000, np.float32))
    frames = encode(segment)
    assert np.shares_memory(np.frombuffer(frames[1], np.int32), ids)
    back = decode(frames, TokenSegment)
    assert np.shares_memory(back.ids, ids)


def test_an_array_with_gaps_is_refused():
    with pytest.raises(WireError, match="contiguous"):
        raw_bytes(np.arange(10, dtype=np.int32)[::2])


def test_what_is_no_array_is_refused():
    with pytest.raises(WireError, match="complex"):
        encode([np.zeros(2, np.complex64)])
    with pytest.raises(WireError, match="object does not go"):
        encode([object()])
    with pytest.raises(WireError):
        encode([2**64])
    with pytest.raises(WireError):
        encode_json("\ud800")


@given(traces, st.data())
def test_damaged_frames_give_one_typed_error(trace, data):
    frames = [bytes(frame) for frame in encode(trace)]
    which = data.draw(st.integers(0, len(frames) - 1))
    kind = data.draw(st.sampled_from(["cut", "flip", "drop", "grow"]))
    frame = frames[which]
    at = data.draw(st.integers(0, max(0, len(frame) - 1)))
    if kind == "cut":
        frames[which] = frame[:at]
    elif kind == "flip" and frame:
        frames[which] = frame[:at] + bytes([frame[at] ^ data.draw(st.integers(1, 255))]) + frame[at + 1 :]
    elif kind == "drop":
        del frames[which]
    else:
        frames[which] = frame + b"\x00"
    with contextlib.suppress(WireError):
        assert isinstance(decode(frames, Trace), Trace)


@given(st.lists(st.binary(max_size=200), max_size=4))
@example([b"\xdd\xff\xff\xff\xff"])
@example([b"\xdf\xff\xff\xff\xff"])
@example([b"\x91" * 150])
@example([b""])
@example([])
def test_garbage_gives_one_typed_error(frames):
    with pytest.raises(WireError):
        decode(frames, Trace)


def test_a_deep_header_does_not_exhaust_the_stack():
    with pytest.raises(WireError):
        decode([b"\x91" * 1_000_000], list)


@pytest.mark.parametrize(
    "ref",
    [
        ["i4", [2**62], 0],
        ["i4", [2**31, 2**31, 4], 0],
        ["f8", [10**9], 0],
        ["i4", [-1], 0],
        ["i4", [-2, -2], 0],
        ["O", [1], 0],
        ["i4", [1, 1, 1, 1, 1], 0],
        ["i4", [4], 1],
        ["i4", [4], -1],
        ["i4", [4], 0, 0],
        {"dtype": "i4"},
        None,
    ],
)
def test_a_lying_reference_allocates_nothing(ref):
    segment = {"base": -1, "ids": ref, "sampled": ref, "logprobs": ref}
    header = msgspec.msgpack.encode(segment)
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode([header, b"\x00" * 15], TokenSegment)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_view_takes_its_shape_from_the_reference():
    view = view_of(ArrayRef("u2", (2, 1, 2), 0), b"\x01\x00\x02\x00\x03\x00\x04\x00")
    assert view.tolist() == [[[1, 2]], [[3, 4]]]
    assert not view.flags.owndata


_FIRST_USE = """
import sys, threading
import msgspec
from rollwright.wire.codec import decode

sys.setswitchinterval(1e-6)
raw = msgspec.msgpack.encode({f"a{k}": [{f"f{j}": 1 for j in range(20)}] for k in range(30)})
for number in range(300):
    inner = msgspec.defstruct(f"Inner{number}", [(f"f{k}", int, 0) for k in range(20)])
    outer = msgspec.defstruct(f"Outer{number}", [(f"a{k}", tuple[inner, ...], ()) for k in range(30)])
    start = threading.Barrier(3)
    threads = [threading.Thread(target=lambda: (start.wait(), decode([raw], outer))) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
print("alive")
"""


def test_threads_may_be_the_first_to_decode_a_type():
    """msgspec learns a type at its first use, and a thread that reads what another has half learned takes all down."""
    ran = subprocess.run([sys.executable, "-c", _FIRST_USE], capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout) == (0, "alive\n"), ran.stderr


@pytest.mark.parametrize("odd", [2**70, -(2**70), functools.reduce(lambda inner, _: [inner], range(300), 1)])
def test_json_holds_what_the_schema_of_a_tool_may_hold(odd):
    trace = Trace(task_id="t", attempt=0, tools=(ToolSpec("look", parameters={"maximum": odd}),))
    text, frames = encode_json(trace)
    assert decode_json(text, frames, Trace) == trace


@given(st.text(), st.floats(), st.integers())
def test_json_says_what_anybody_would_read_in_it(text, number, count):
    trace = Trace(task_id=text, attempt=1, reward=number, info={"count": count, text: text})
    assert json.loads(encode_json(trace)[0]) == json.loads(msgspec.json.encode(trace))
