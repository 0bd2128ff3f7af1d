"""The multiplexed output of a program, as the engine sends it: an eight-byte head, then that many bytes. No socket.

A head tells the stream (1 stdout, 2 stderr; 0 and 3 belong to the engine and are heard as stderr) and a length. Bytes
go out as they come in: a frame is never held back until it is whole.
"""

from __future__ import annotations

from rollwright.wire import RuntimeFault

STDOUT, STDERR = 1, 2
_HEAD = 8


class FrameReader:
    """Takes bytes in any cut and tells (stream, bytes)."""

    def __init__(self) -> None:
        self._head = b""
        self._stream = STDOUT
        self._left = 0

    def feed(self, chunk: bytes) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        view = memoryview(chunk)
        while view:
            if self._left:
                part, view = view[: self._left], view[self._left :]
                self._left -= len(part)
                found.append((self._stream, bytes(part)))
                continue
            wanted = _HEAD - len(self._head)
            self._head, view = self._head + bytes(view[:wanted]), view[wanted:]
            if len(self._head) == _HEAD:
                self._open_frame()
        return found

    def _open_frame(self) -> None:
        if self._head[0] > 3 or self._head[1:4] != b"\0\0\0":
            raise RuntimeFault(f"the engine sent output that is not multiplexed: {self._head!r}")
        self._stream = STDOUT if self._head[0] == STDOUT else STDERR
        self._left = int.from_bytes(self._head[4:], "big")
        self._head = b""


class Kept:
    """The first `limit` bytes of a stream, and the count of the rest."""

    def __init__(self, limit: int) -> None:
        self._room = max(limit, 0)
        self._parts: list[bytes] = []
        self.dropped = 0

    def add(self, chunk: bytes) -> None:
        part = chunk[: self._room]
        if part:
            self._parts.append(part)
            self._room -= len(part)
        self.dropped += len(chunk) - len(part)

    def data(self) -> bytes:
        return b"".join(self._parts)
