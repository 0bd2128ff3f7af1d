"""One answer as the bytes of a stream, and those bytes gone wrong. No socket here."""

from __future__ import annotations

from collections.abc import Iterator

from rollwright.dialects import Dialect
from rollwright.wire import Event, ModelCall, ModelReply, ReasoningDelta, TextDelta, ToolCallDelta, events_of

from .config import Fault


def chunked(reply: ModelReply, chunk_chars: int) -> Iterator[Event]:
    """The events of a reply, none with more than `chunk_chars` characters."""
    for event in events_of(reply):
        if isinstance(event, TextDelta):
            for piece in _cut(event.text, chunk_chars):
                yield TextDelta(piece)
        elif isinstance(event, ReasoningDelta):
            *first, last = _cut(event.text, chunk_chars)
            for piece in first:
                yield ReasoningDelta(piece)
            yield ReasoningDelta(last, event.signature)
        elif isinstance(event, ToolCallDelta):
            first_piece, *rest = _cut(event.arguments, chunk_chars)
            yield ToolCallDelta(event.index, first_piece, event.id, event.name)
            for piece in rest:
                yield ToolCallDelta(event.index, piece)
        else:
            yield event


def frames(dialect: Dialect, call: ModelCall, reply: ModelReply, chunk_chars: int) -> list[bytes]:
    """The stream in the pieces in which it is sent."""
    writer = dialect.stream_writer(call)
    written = [writer.open(), *(writer.write(event) for event in chunked(reply, chunk_chars))]
    return [frame for frame in written if frame]


def spoiled(whole: list[bytes], fault: Fault) -> list[bytes]:
    """What of a stream arrives under a fault."""
    half = max(1, len(whole) // 2)
    if fault in (Fault.CUT_STREAM, Fault.STALL):
        return whole[:half]
    if fault is Fault.MALFORMED_JSON:
        return [*whole[:half], *(_unclosed(frame) for frame in whole[half:])]
    return whole


def _unclosed(frame: bytes) -> bytes:
    """Every event of the frame loses the last brace of its JSON."""
    return frame.replace(b"}\n\n", b"\n\n")


def _cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, max(len(text), 1), size)]
