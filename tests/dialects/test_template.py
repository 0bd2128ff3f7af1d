"""Chat streams: reading what is like an earlier piece by comparing bytes gives what reading it whole gives."""

import json

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from rollwright.dialects.chat.stream import ChatStreamReader
from rollwright.dialects.chat.template import template_of
from rollwright.dialects.streaming import SseStreamReader
from rollwright.wire import End, TextDelta, WireError


class Thorough(ChatStreamReader):
    """Reads each piece whole."""

    feed = SseStreamReader.feed


TEXTS = st.text(max_size=6) | st.sampled_from(
    ['"', "\\", "\\n", "\n\n", '"content":"', "data: [DONE]", "é\u2028", "\x7f"]
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "token_ids": st.lists(st.integers(0, 9), max_size=2),
        "logprobs": st.none(),
        "finish_reason": st.sampled_from([None, "stop", "length"]),
    },
)
DELTAS = st.fixed_dictionaries(
    {"content": TEXTS},
    optional={"role": st.just("assistant"), "refusal": TEXTS, "reasoning_content": TEXTS, "note": TEXTS},
)


@st.composite
def pieces(draw):
    """Pieces of one stream. Most share their shape, as those of engines do."""
    top = draw(st.fixed_dictionaries({}, optional={"id": TEXTS, "model": st.just("m"), "content": TEXTS}))
    choice, said, ascii_only = draw(FIELDS), [], draw(st.booleans())
    for _ in range(draw(st.integers(2, 5))):
        if draw(st.integers(0, 4)) == 0:
            choice = draw(FIELDS)
        delta = draw(DELTAS) if draw(st.integers(0, 2)) == 0 else {"content": draw(TEXTS)}
        body = json.dumps(
            {**top, "choices": [{"index": 0, "delta": delta, **choice}]},
            ensure_ascii=ascii_only,
            separators=(",", ":"),
        )
        said.append(b"data: %b\n\n" % body.encode())
    if draw(st.booleans()):
        said.insert(0, b'data: {"prompt_token_ids":[1,2],"choices":[]}\n\n')
    return said


def read(reader, chunks):
    """What was told piece by piece, and what the whole amounts to."""
    told = []
    try:
        told.extend(reader.feed(piece) for piece in chunks)
        told.append(_bare(reader.feed(b"data: [DONE]\n\n")))
        told.append(reader.feed(chunks[0]))
    except WireError:
        told.append("does not parse")
    return told, _sampled(reader)


def _bare(events):
    """Without arrays, which do not compare."""
    return [replace(event, tokens=None) if isinstance(event, End) else event for event in events]


def _sampled(reader):
    return list(reader._gatherer._ids)


@given(pieces())
def test_templates_change_nothing(chunks):
    assert read(ChatStreamReader(), chunks) == read(Thorough(), chunks)


@given(pieces(), st.data())
def test_templates_change_nothing_where_bytes_are_wrong(chunks, data):
    at = data.draw(st.integers(0, len(chunks[-1]) - 1))
    wrong = chunks[-1][:at] + data.draw(st.binary(max_size=3)) + chunks[-1][at + data.draw(st.integers(0, 3)) :]
    chunks[-1] = wrong
    assert read(ChatStreamReader(), chunks) == read(Thorough(), chunks)


@given(TEXTS)
@example("plain words")
def test_an_ordinary_stream_is_read_by_its_template(text):
    def piece(words):
        return b'data: {"id":"c","choices":[{"index":0,"delta":{"content":%b}}]}\n\n' % json.dumps(words).encode()

    template = template_of(piece("first"), "first")
    assert template is not None
    assert template.text(piece(text)) == text
    reader = ChatStreamReader()
    assert reader.feed(piece("first")) == [TextDelta("first")]
    assert reader._template is not None


def test_another_content_is_not_taken_for_the_text():
    piece = b'data: {"content":"%b","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    chunks = [piece % b"a", piece % b"b"]
    assert read(ChatStreamReader(), chunks) == read(Thorough(), chunks)


def test_ids_of_like_pieces_add_up():
    piece = b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"token_ids":[7]}]}\n\n'
    chunks = [b'data: {"prompt_token_ids":[1],"choices":[]}\n\n', piece % b"a", piece % b"b", piece % b"c"]
    reader = ChatStreamReader()
    read(reader, chunks)
    assert _sampled(reader) == [7, 7, 7]
