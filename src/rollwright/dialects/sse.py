"""Server-sent events: bytes in, payloads out. Event names are not read, because every payload that we know names its
own type; ids and retry hints are for browsers."""

from __future__ import annotations

from rollwright.wire import WireError

KEEPALIVE = b": keepalive\n\n"
"""A comment that any reader skips. A server sends it while the engine thinks."""

MAX_EVENT_BYTES = 256 * 2**20
_BOM = b"\xef\xbb\xbf"


class SseReader:
    """Lines end with LF or CRLF. The work is linear in the bytes, however they are cut."""

    def __init__(self) -> None:
        self._line: list[bytes] = []
        """Pieces of a line whose end has not come."""
        self._data: list[bytes] = []
        """Data lines of an event whose end has not come."""
        self.held_bytes = 0
        """An upper bound of the bytes of both; 0 if all that came was whole events."""
        self._at_start = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads of the events that `chunk` completes."""
        if not self.held_bytes and is_one_event(chunk):
            self._at_start = False
            return [chunk[6:-2]]
        head, newline, rest = chunk.rpartition(b"\n")
        payloads: list[bytes] = []
        if newline:
            self._line.append(head)
            lines = b"".join(self._line).split(b"\n")
            self._line.clear()
            payloads = self._payloads(lines)
            if not self._data:
                self.held_bytes = 0
        if rest:
            self._line.append(rest)
        if self._line or self._data:
            self.held_bytes += len(chunk)
            if self.held_bytes > MAX_EVENT_BYTES:
                raise WireError(f"one event of the stream is over {MAX_EVENT_BYTES} bytes")
        return payloads

    def _payloads(self, lines: list[bytes]) -> list[bytes]:
        if self._at_start:
            self._at_start = False
            lines[0] = lines[0].removeprefix(_BOM)
        payloads = []
        data = self._data
        for line in lines:
            text = line[:-1] if line.endswith(b"\r") else line
            if text.startswith(b"data:"):
                data.append(text[6:] if text.startswith(b"data: ") else text[5:])
            elif not text and data:
                payloads.append(data[0] if len(data) == 1 else b"\n".join(data))
                data.clear()
            elif text == b"data":
                data.append(b"")
        return payloads


def is_one_event(chunk: bytes) -> bool:
    """Nearly every piece of a stream is one event of one line, and nothing else."""
    return (
        chunk.startswith(b"data: ")
        and chunk.endswith(b"\n\n")
        and chunk.find(b"\n") == len(chunk) - 2
        and chunk[-3:-2] != b"\r"
    )


def sse(payload: bytes, event: str = "") -> bytes:
    """One event. The payload is JSON without raw newlines."""
    if event:
        return b"event: %b\ndata: %b\n\n" % (event.encode(), payload)
    return b"data: %b\n\n" % payload
