"""HTTP's chunked coding, for the pieces of streams: each is read and written as one chunk, thousands of times a second.
So the lines that tell the size of a short chunk are made once and looked up. The HTTP library reads all the rest."""

from __future__ import annotations

import re

_CHUNK = re.compile(rb"([0-9a-fA-F]{1,7})\r\n")
_SHORT_BYTES = 4096
_SIZE_LINES = [b"%x\r\n" % size for size in range(_SHORT_BYTES)]
_NONE = b"\0"
"""Begins no packet that is one chunk."""


def _packet_heads() -> list[bytes]:
    """By the length of a packet, how it begins if it is one whole chunk as nearly everybody writes it."""
    heads = [_NONE] * _SHORT_BYTES
    for size in range(1, _SHORT_BYTES):
        length = len(_SIZE_LINES[size]) + size + 2
        if length < _SHORT_BYTES:
            heads[length] = _SIZE_LINES[size]
    return heads


_PACKET_HEADS = _packet_heads()


def chunk_of(data: bytes) -> bytes:
    """`data`, which is not empty, as one chunk."""
    size = len(data)
    return (_SIZE_LINES[size] if size < _SHORT_BYTES else b"%x\r\n" % size) + data + b"\r\n"


def whole_chunks(data: bytes) -> bytes | None:
    """What is in `data` if it is whole chunks of HTTP and nothing else, none of them the last; None otherwise."""
    length = len(data)
    if length < _SHORT_BYTES:
        head = _PACKET_HEADS[length]
        if data.startswith(head) and data.endswith(b"\r\n"):
            return data[len(head) : -2]
    return _several(data)


def _several(data: bytes) -> bytes | None:
    pieces, at = [], 0
    while found := _CHUNK.match(data, at):
        begin = found.end()
        at = begin + int(found[1], 16)
        if at == begin or data[at : at + 2] != b"\r\n":
            return None
        pieces.append(data[begin:at])
        at += 2
        if at == len(data):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return None
