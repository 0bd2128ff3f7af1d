"""The outline of a long body, drawn a slice at a time, so that no step of reading grows with the body.

Where one element ends and the next begins is guessed by its looks and proven by the JSON reader: reading goes from left
to right, so if the text from one border up to the guess is whole elements between brackets, then the guess is a border.
A guess that is wrong (within an element, say) costs a try; after some of them brackets are counted, which takes longer,
and where an element is longer than a slice, the slice grows. So a step reads as much as the largest element is long,
and a bit. What cannot be cut is read as one."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

import msgspec

from rollwright.wire import WireError

from .outlines import Outline, check_text, comes_after, ends_of, outline, outline_rest
from .steps import STEP_BYTES, Steps, at_once

_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
# A quote that opens a key stands in no string, where it would be escaped.
_BORDER = re.compile(rb'\}(?=[ \t\n\r]*,[ \t\n\r]*\{[ \t\n\r]*")')
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{}]', re.DOTALL)
_NEAR_BYTES = 2**12
_TRIES = 3
_MAX_COUNTED_BYTES = 2**20


class Feed:
    """The pieces of a body in order, taken in amounts that others choose."""

    def __init__(self, chunks: deque[bytes], skip: int = 0) -> None:
        self._chunks = chunks
        self._at = skip
        """So much of the first piece is taken."""
        self.left = sum(map(len, chunks)) - skip

    def take(self, least: int) -> list[bytes]:
        """At least so many bytes, or all that is left; a long piece is cut."""
        taken = []
        while self._chunks and least > 0:
            chunk = self._chunks[0]
            piece = chunk[self._at : self._at + least] if self._at or len(chunk) > least else chunk
            self._at += len(piece)
            if self._at == len(chunk):
                self._chunks.popleft()
                self._at = 0
            taken.append(piece)
            least -= len(piece)
            self.left -= len(piece)
        return taken


def outline_in_slices(feed: Feed, field: str, what: str) -> Steps[Outline]:
    """As `outline` of the whole body."""
    window = b"".join(feed.take(STEP_BYTES))
    head = _head(window, field, what) if feed.left else b""
    if not head:
        return (yield from outline(b"".join([window, *feed.take(feed.left)]), field, what))
    drawn = yield from _drawn(head, window[len(head) :], feed, len(head), what)
    if comes_after(drawn, field, what):
        # It comes twice, and what that means is for the reader of the whole to say.
        return (yield from outline(b"".join([head, *drawn.texts]), field, what))
    return drawn


def outline_rest_in_slices(head: bytes, feed: Feed, at: int, what: str) -> Steps[Outline]:
    """As `outline_rest` from a border on."""
    return (yield from _drawn(head, b"", feed, at, what))


def _head(window: bytes, field: str, what: str) -> bytes:
    """All up to the bracket that opens the list; empty where that is not in the window, or cannot be told."""
    for found in re.finditer(rb'"%b"[ \t\n\r]*:[ \t\n\r]*\[' % re.escape(field.encode()), window):
        head = window[: found.end()]
        try:
            drawn = at_once(outline(head + b"]}", field, what))
        except WireError:
            continue
        return head if drawn.head == head else b""
    return b""


def _drawn(head: bytes, window: bytes, feed: Feed, at: int, what: str) -> Steps[Outline]:
    elements: list[msgspec.Raw] = []
    ends: list[int] = []
    texts: list[bytes] = []
    wanted = STEP_BYTES
    while True:
        window = b"".join([window, *feed.take(wanted - len(window))])
        if not feed.left:
            break
        found = _whole_elements(window, at, what, first=at == len(head))
        if found is None:
            wanted = 2 * len(window)
        else:
            cut, read = found
            elements += read
            ends += ends_of(window, 0, at, read)
            texts.append(window[:cut])
            window, at, wanted = window[cut:], at + cut, STEP_BYTES
        yield
    last = yield from outline_rest(head, window, at, what)
    return Outline(head, elements + last.elements, ends + last.ends, last.after, texts + last.texts)


def _whole_elements(window: bytes, at: int, what: str, *, first: bool) -> tuple[int, list[msgspec.Raw]] | None:
    """Elements that the window begins with, and where the last of them ends."""
    before = b"[" if first else b"[{}"
    for cut in _guesses(window):
        try:
            elements = _ELEMENTS.decode(b"%b%b]" % (before, window[:cut]))
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue
        check_text(window[:cut], at, what)
        return cut, elements if first else elements[1:]
    return None


def _guesses(window: bytes) -> Iterator[int]:
    """Where elements may end, from the last on."""
    near = max(len(window) - _NEAR_BYTES, 0)
    last = [found.end() for found in _BORDER.finditer(window, near)]
    if not last:
        last = [found.end() for found in _BORDER.finditer(window)]
    yield from reversed(last[-_TRIES:])
    if len(last) > _TRIES and len(window) <= _MAX_COUNTED_BYTES and (counted := _counted(window)):
        yield counted


def _counted(window: bytes) -> int:
    """Where the last element ends that is whole, as far as brackets tell; 0 if none is."""
    depth = end = 0
    for found in _TOKEN.finditer(window):
        token = window[found.start()]
        if token in b"[{":
            depth += 1
        elif token in b"]}":
            depth -= 1
            end = end if depth else found.end()
        elif found.end() - found.start() == 1:
            # A string that goes on beyond the window.
            break
    return end
