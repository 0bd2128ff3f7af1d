"""Bytes into files: every one, in order, and never so many at once that nobody else gets a CPU."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.call_trees import assert_same, chat
from rollwright.orchestrator import Batch, samples_of, writing
from rollwright.orchestrator.batches import encode_batch
from rollwright.orchestrator.filters import make_filters
from rollwright.orchestrator.groups import Ticket
from rollwright.orchestrator.landing import land
from rollwright.orchestrator.transports.files import write_batch
from rollwright.orchestrator.writing import turns, write_at


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(1, 50), st.integers(1, 7))
def test_turns_are_the_same_bytes_within_the_limits(buffers, most_bytes, most_buffers):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writing, "TURN_BYTES", most_bytes)
        patched.setattr(writing, "MOST_BUFFERS", most_buffers)
        taken = list(turns(buffers))
    assert b"".join(part for turn in taken for part in turn) == b"".join(buffers)
    for turn in taken:
        assert 0 < sum(map(len, turn)) <= most_bytes
        assert len(turn) <= most_buffers
        assert all(turn)


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(0, 100), st.integers(1, 60), st.data())
def test_every_byte_is_written_however_few_the_system_takes(buffers, offset, most_bytes, data):
    write, expected = os.pwritev, bytes(offset) + b"".join(buffers)

    def stingy(descriptor, several, at):
        offered = b"".join(several)
        return write(descriptor, [offered[: data.draw(st.integers(1, len(offered)))]], at)

    with tempfile.TemporaryFile() as file, pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "pwritev", stingy)
        patched.setattr(writing, "TURN_BYTES", most_bytes)
        file.truncate(offset)
        assert write_at(file.fileno(), offset, buffers) == len(expected)
        assert file.read() == expected


def test_arrays_of_any_shape_are_written_as_the_memory_they_are(tmp_path):
    arrays = [np.arange(24, dtype="<i4").reshape(2, 3, 4), np.zeros((0, 3)), np.array([True, False]), np.float32([1.5])]
    with open(tmp_path / "arrays", "wb") as file:
        write_at(file.fileno(), 0, [array.data for array in arrays])
    assert (tmp_path / "arrays").read_bytes() == b"".join(array.tobytes() for array in arrays)


def test_no_call_of_the_system_moves_more_than_a_turn(tmp_path, monkeypatch):
    """Where the kernel does not preempt itself, what one call takes is what an event loop waits for a CPU."""
    moved: list[int] = []
    turn_bytes = 4096
    write, copy = os.pwritev, os.copy_file_range
    monkeypatch.setattr(writing, "TURN_BYTES", turn_bytes)
    monkeypatch.setattr(os, "pwritev", lambda *args: (moved.append(write(*args)), moved[-1])[1])
    monkeypatch.setattr(os, "copy_file_range", lambda *args: (moved.append(copy(*args)), moved[-1])[1])
    trace = chat(3, new=20_000)
    ticket = Ticket(0, "s", 0, 0, 1)
    landed, (samples,) = land(ticket, [trace], filters=make_filters().rollout, directory=tmp_path / "groups")
    batch = Batch.of(1, samples)
    assert write_batch(tmp_path, batch, sync=False).read_bytes() == b"".join(encode_batch(batch))
    (expected,) = samples_of(trace)
    assert_same(samples[0], msgspec.structs.replace(expected, group=0, source="s"))
    assert max(moved) == turn_bytes
    assert sum(moved) > 2 * Path(landed.path).stat().st_size * 0.9
