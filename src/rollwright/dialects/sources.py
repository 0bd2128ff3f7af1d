"""The list of a request as it was written, beside what it says.

The text is kept without its images, which are in the image store: where one was cut out is a hole. So the list is
written again byte for byte for an engine of the same dialect, whatever fields its messages have that we do not know,
and the next request is compared with it. The kept text only grows; whoever needs less of it makes a copy, so a call
that is under way keeps what it was read from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import islice
from operator import is_
from typing import Any, NamedTuple

import orjson
from msgspec import Struct

from rollwright.wire import Image, Message, ModelCall, Source

from .forms import Group, Noted, Settings
from .images import Images

_BEGINNING = 64


class Hole(NamedTuple):
    """An image that was cut out of the text."""

    at: int
    """Where in the text."""
    size: int
    """Of its base64."""
    digest: bytes
    """SHA-256 of its base64, for when the store does not have that in memory."""
    image: Image


class Mark(Struct, frozen=True, gc=False):
    """How far everything is after a group of elements."""

    end: int
    """In the body."""
    text: int
    holes: int
    messages: int
    elements: int
    closed: bool = True
    """Whether what follows cannot change what stands before it."""


class Listing:
    """The list of one request, up to some element, and the head of the body before it."""

    def __init__(self, head: bytes) -> None:
        self.head = head
        self.text = bytearray(head)
        self.holes: list[Hole] = []
        self.messages: list[Message] = []
        self.marks = [Mark(len(head), len(head), 0, 0, 0)]
        """One before the first group, and one after each."""
        self.ends = [len(head)]
        """Of the marks, for searching."""

    def mark_before(self, at: int) -> int:
        """The last mark at or before the offset `at` of the body; -1 if there is none. Nothing that may still change
        stands before it."""
        found = bisect_right(self.ends, at) - 1
        while found >= 0 and not self.marks[found].closed:
            found -= 1
        return found

    def add(self, raw: bytes, group: Group, noted: Sequence[Noted]) -> None:
        """Add a group of elements. `raw` is its text, with the comma before it; `noted` are its images, in order."""
        kept_to = 0
        for encoded, digest, image in noted:
            at = _find(raw, encoded, kept_to)
            if at >= 0:
                self.text += memoryview(raw)[kept_to:at]
                self.holes.append(Hole(len(self.text), len(encoded), digest, image))
                kept_to = at + len(encoded)
        self.text += memoryview(raw)[kept_to:]
        self.messages += group.messages
        last = self.marks[-1]
        self._mark(Mark(
            last.end + len(raw), len(self.text), len(self.holes), len(self.messages), last.elements + group.elements,
            group.closed,
        ))  # fmt: skip

    def _mark(self, mark: Mark) -> None:
        self.marks.append(mark)
        self.ends.append(mark.end)

    def up_to(self, number: int) -> Listing:
        """A copy that ends at a mark."""
        mark = self.marks[number]
        copy = Listing(self.head)
        copy.text = self.text[: mark.text]
        copy.holes = self.holes[: mark.holes]
        copy.messages = self.messages[: mark.messages]
        copy.marks = self.marks[: number + 1]
        copy.ends = self.ends[: number + 1]
        return copy

    def written(self, first: int, last: int, images: Images) -> list[bytes]:
        """The pieces of the text between two marks."""
        begin, end = self.marks[first], self.marks[last]
        pieces: list[bytes] = []
        at = begin.text
        for hole in islice(self.holes, begin.holes, end.holes):
            pieces += (bytes(memoryview(self.text)[at : hole.at]), images.get_text(hole.image))
            at = hole.at
        pieces.append(bytes(memoryview(self.text)[at : end.text]))
        return pieces


def _find(raw: bytes, encoded: str, start: int) -> int:
    """Where the base64 stands in `raw`; -1 where it was written with escapes."""
    text = encoded.encode("ascii")
    at = raw.find(text[:_BEGINNING], start)
    return at if at >= 0 and raw.startswith(text, at) else -1


class Written(Source):
    """What a call was read from: its list up to some mark, and its settings."""

    __slots__ = ("listing", "number", "settings")

    def __init__(self, listing: Listing, settings: Settings) -> None:
        self.listing = listing
        self.number = len(listing.marks) - 1
        self.settings = settings

    def opens(self, messages: Sequence[Message]) -> int:
        """How many of `messages` stood before the list, as they still do; -1 if they do not."""
        opening = self.settings.opening
        same = self.listing.head and len(messages) >= len(opening) and all(map(is_, messages, opening))
        return len(opening) if same else -1

    def elements(
        self, messages: Sequence[Message], write: Callable[[Sequence[Message]], list[Any]], images: Images
    ) -> Any:
        """The list again, given its messages: as it was where they are those that were read, written anew elsewhere."""
        if not self.listing.head:
            return write(messages)
        listing, total = self.listing, self.listing.marks[self.number].messages
        if len(messages) == total and all(map(is_, messages, listing.messages)):
            return orjson.Fragment(_list_text(listing.written(0, self.number, images)))
        return self._patched(messages, write, images)

    def _patched(
        self, messages: Sequence[Message], write: Callable[[Sequence[Message]], list[Any]], images: Images
    ) -> list[Any]:
        marks, known = self.listing.marks, self.listing.messages
        groups = {
            id(known[marks[number].messages]): number
            for number in range(self.number)
            if marks[number].messages < marks[number + 1].messages
        }
        out: list[Any] = []
        changed: list[Message] = []
        at = 0
        while at < len(messages):
            number = groups.get(id(messages[at]), -1)
            size = self._same(messages, at, number)
            if size:
                # The elements of a group stay as they are, with the commas between them and without the one before.
                raw = b"".join(self.listing.written(number, number + 1, images)).lstrip(b" \t\n\r,")
                out += [*write(changed), orjson.Fragment(raw)]
                changed = []
            else:
                changed.append(messages[at])
            at += size or 1
        return out + write(changed)

    def _same(self, messages: Sequence[Message], at: int, number: int) -> int:
        """How many messages from `at` are those of the group after mark `number`; 0 if it is another group."""
        if number < 0:
            return 0
        begin, end = self.listing.marks[number].messages, self.listing.marks[number + 1].messages
        size = end - begin
        same = len(messages) - at >= size and all(
            map(is_, islice(messages, at, at + size), islice(self.listing.messages, begin, end))
        )
        return size if same else 0


def _list_text(pieces: list[bytes]) -> bytes:
    return b"".join([b"[", *pieces, b"]"])


def source_of(call: ModelCall, dialect: str) -> Written | None:
    """What the call was read from, if that was in this dialect."""
    return call.source if call.dialect == dialect and isinstance(call.source, Written) else None
