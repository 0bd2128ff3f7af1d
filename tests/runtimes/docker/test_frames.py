"""Multiplexed output: the borders of chunks change nothing, and what is not multiplexed is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.runtimes.docker.frames import STDERR, STDOUT, FrameReader, Kept
from rollwright.wire import RuntimeFault

frames = st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(max_size=200)), max_size=12)


def _written(frames):
    return b"".join(bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data for stream, data in frames)


@given(frames, st.integers(1, 64))
def test_chunk_borders_change_nothing(frames, size):
    reader, heard = FrameReader(), {STDOUT: b"", STDERR: b""}
    data = _written(frames)
    for at in range(0, len(data), size):
        for stream, part in reader.feed(data[at : at + size]):
            heard[stream] += part
    assert heard == {one: b"".join(data for stream, data in frames if stream == one) for one in (STDOUT, STDERR)}


def test_plain_output_is_refused():
    with pytest.raises(RuntimeFault, match="not multiplexed"):
        FrameReader().feed(b"hello there")


@given(st.lists(st.binary(max_size=50)), st.integers(0, 120))
def test_what_is_kept_and_what_is_dropped_are_all(chunks, limit):
    kept, whole = Kept(limit), b"".join(chunks)
    for chunk in chunks:
        kept.add(chunk)
    assert kept.data() == whole[:limit]
    assert kept.dropped == len(whole) - len(kept.data())
