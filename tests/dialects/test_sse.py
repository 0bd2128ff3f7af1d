"""Server-sent events, apart from any dialect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.dialects import sse as module
from rollwright.dialects.sse import KEEPALIVE, SseReader, sse
from rollwright.wire import WireError

lines = st.binary(max_size=10).filter(lambda text: b"\n" not in text and b"\r" not in text)


@given(
    payloads=st.lists(st.lists(lines, min_size=1, max_size=3), max_size=4), size=st.integers(1, 9), crlf=st.booleans()
)
def test_payloads_of_many_lines_survive_any_cut(payloads, size, crlf):
    body = b"".join(b"event: x\n" + b"".join(b"data: %b\n" % line for line in payload) + b"\n" for payload in payloads)
    body = body.replace(b"\n", b"\r\n") if crlf else body
    reader = SseReader()
    read = [payload for at in range(0, len(body), size) for payload in reader.feed(body[at : at + size])]
    assert read == [b"\n".join(payload) for payload in payloads]


def test_comments_fields_and_a_byte_order_mark_are_skipped():
    reader = SseReader()
    body = b"\xef\xbb\xbfdata:1\n\n" + KEEPALIVE + b"id: 7\nretry: 10\nevent: e\n\ndata\n\n" + sse(b"2", "e")
    assert reader.feed(body) == [b"1", b"", b"2"]


def test_an_event_without_end_has_a_limit(monkeypatch):
    monkeypatch.setattr(module, "MAX_EVENT_BYTES", 100)
    reader = SseReader()
    reader.feed(b"data: " + b"x" * 90)
    with pytest.raises(WireError, match="over 100 bytes"):
        reader.feed(b"x" * 10)


def test_many_data_lines_have_the_same_limit(monkeypatch):
    monkeypatch.setattr(module, "MAX_EVENT_BYTES", 100)
    reader = SseReader()
    for _ in range(5):
        reader.feed(b"data: 0123456789\n")
    with pytest.raises(WireError, match="over 100 bytes"):
        reader.feed(b"data: 0123456789\n")


def test_the_limit_is_for_one_event_not_for_the_stream(monkeypatch):
    monkeypatch.setattr(module, "MAX_EVENT_BYTES", 100)
    reader = SseReader()
    for _ in range(50):
        assert reader.feed(b"data: 0123456789\n\nda") == [b"0123456789"]
        assert reader.feed(b"ta: x\n\n") == [b"x"]
