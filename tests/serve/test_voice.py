"""The broker's words: they come whole and in order, and nobody who does not read them holds the broker."""

import logging
import os

import pytest

from rollwright.serve.voice import BUDGET_BYTES, Voice


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            continue


def test_lines_and_logs_come_in_order(pipe):
    reader, writer = pipe
    voice = Voice(writer)
    handler = logging.StreamHandler(voice)
    voice.say([b"one", b"two"])
    handler.emit(logging.makeLogRecord({"msg": "three", "levelno": logging.WARNING}))
    assert os.read(reader, 1000) == b"one\ntwo\nthree\n"
    assert repr(voice) == "<Voice 0 bytes unsaid, 0 lines dropped>"


def test_a_reader_that_does_not_read_holds_nobody_and_learns_what_it_missed(pipe):
    """The pipe blocks its writers: this test would hang if the voice ever waited."""
    reader, writer = pipe
    assert os.get_blocking(writer)
    voice = Voice(writer)
    lines = [b"%07d" % number for number in range(100_000)]
    voice.say(lines)
    assert len(voice._unsaid) <= BUDGET_BYTES
    got = b""
    while voice._unsaid:
        got += os.read(reader, 65536)
        voice.flush()
    got += os.read(reader, 65536)
    *kept, confession = got.decode().splitlines()
    assert kept == [line.decode() for line in lines[: len(kept)]]
    assert confession == f"({len(lines) - len(kept)} lines are missing here: nobody read them in time)"


def test_a_reader_that_is_gone_is_forgotten(pipe):
    reader, writer = pipe
    os.close(reader)
    voice = Voice(writer)
    voice.say([b"anybody there?"] * 1000)
    assert repr(voice) == "<Voice 0 bytes unsaid, 0 lines dropped>"
