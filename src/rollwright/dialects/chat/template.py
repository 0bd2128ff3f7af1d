"""Pieces of a stream that differ from an earlier one in the text that they carry, and in nothing else.

An engine sends hundreds of pieces around a few words each, and all but the words are the same bytes. What was read once
need not be read again: between the same bytes there is either another JSON string, or something that is no match."""

from __future__ import annotations

import re

import msgspec

_KEY = b'"content":"'
_REST = re.compile(rb'[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+')
"""The rest of a JSON string after its opening quote, and nothing that ends a line."""
_PLAIN = bytes(byte for byte in range(32, 256) if byte not in b'"\\')
"""What stands in a JSON string as it is read."""
_TEXT = msgspec.json.Decoder(str)


class Template:
    """One event of a stream, around the text of its `content`."""

    __slots__ = ("_after", "_before", "_ends")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before = before
        self._after = after
        self._ends = len(before) + len(after)

    def text(self, event: bytes) -> str | None:
        """The text that `event` carries if it is like this one; None otherwise."""
        if not (event.startswith(self._before) and event.endswith(self._after) and len(event) >= self._ends):
            return None
        raw = event[len(self._before) : -len(self._after)]
        try:
            if not raw.translate(None, _PLAIN):
                return raw.decode()
            return _TEXT.decode(b'"%b"' % raw) if _REST.fullmatch(raw) else None
        except (UnicodeDecodeError, msgspec.MsgspecError):
            return None


def template_of(event: bytes, text: str) -> Template | None:
    """The template of an event that was read and said `text`; None if that is not the only `content` in it."""
    at = event.find(_KEY)
    if at < 1 or event[at - 1] not in b"{," or event.count(b"content") != 1:
        return None
    begin = at + len(_KEY)
    found = _REST.match(event, begin)
    assert found is not None
    template = Template(event[:begin], event[found.end() :])
    return template if template.text(event) == text else None
