"""How far the bytes of an arriving request are those of an earlier one. Bytes are compared in place, a piece at a time:
the text with the text that is kept, an image with the image store's, or by its hash where that has it on disk."""

from __future__ import annotations

from hashlib import sha256

from .images import Images
from .sources import Hole, Listing


class Match:
    """One arriving request against one earlier one."""

    def __init__(self, listing: Listing, images: Images) -> None:
        self.listing = listing
        self.going = True
        """Whether everything so far was the same."""
        self._images = images
        self._at = 0
        """So much of the body is the same."""
        self._text_at = 0
        self._holes_passed = 0
        self._in_hole: _HoleMatch | None = None

    @property
    def number(self) -> int:
        """The last mark of the listing from which the rest can be read; -1 if there is none."""
        return self.listing.mark_before(self._at)

    @property
    def border(self) -> int:
        """The offset of that mark in the body, or 0."""
        number = self.number
        return self.listing.ends[number] if number >= 0 else 0

    def feed(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        offset = 0
        while self.going and offset < len(chunk):
            hole = self._next_hole()
            if hole is not None and hole.at == self._text_at:
                offset += self._feed_hole(hole, view[offset:])
            else:
                end = len(self.listing.text) if hole is None else hole.at
                offset += self._feed_text(end, view[offset:])

    def _next_hole(self) -> Hole | None:
        holes = self.listing.holes
        return holes[self._holes_passed] if self._holes_passed < len(holes) else None

    def _feed_text(self, end: int, view: memoryview) -> int:
        size = min(end - self._text_at, len(view))
        same = size
        if not self.listing.text.startswith(view[:size], self._text_at):
            same = _common(self.listing.text, self._text_at, view[:size])
        self.going = same == size > 0
        self._at += same
        self._text_at += same
        return same

    def _feed_hole(self, hole: Hole, view: memoryview) -> int:
        if self._in_hole is None:
            self._in_hole = _HoleMatch(hole, self._images.resident(hole.image))
        used = self._in_hole.feed(view)
        self.going = used > 0
        if self.going and self._in_hole.done:
            self._in_hole = None
            self._holes_passed += 1
            self._at += hole.size
        return used


class _HoleMatch:
    """Either the image is in memory, or its hash decides at its end."""

    def __init__(self, hole: Hole, text: bytes | None) -> None:
        self._hole = hole
        self._text = text
        self._hash = sha256()
        self._seen = 0

    @property
    def done(self) -> bool:
        return self._seen == self._hole.size

    def feed(self, view: memoryview) -> int:
        """How many bytes were taken; 0 where the image is another one."""
        piece = view[: self._hole.size - self._seen]
        if self._text is not None:
            same = self._text.startswith(piece, self._seen)
        else:
            self._hash.update(piece)
            last = self._seen + len(piece) == self._hole.size
            same = not last or self._hash.digest() == self._hole.digest
        self._seen += len(piece)
        return len(piece) if same else 0


def _common(text: bytearray, at: int, view: memoryview) -> int:
    """How many bytes of `view` stand in `text` at `at`, given that not all of them do."""
    same, differ = 0, len(view)
    while differ - same > 1:
        middle = (same + differ) // 2
        if text.startswith(view[same:middle], at + same):
            same = middle
        else:
            differ = middle
    return same
