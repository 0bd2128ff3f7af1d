"""A request, read: whole, or from a border of its list on. Both ways give the same call and the same error."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from rollwright.wire import ModelCall

from .forms import Around, Form, Group, Noted, Settings
from .images import Images
from .outlines import Outline, outline
from .sources import Listing, Written
from .steps import STEP_BYTES, STEP_ELEMENTS, Steps, at_once


class Chapter(Struct, frozen=True, gc=False):
    """A group with its text. Like all that there is one of per message, it is nothing that collections look at."""

    raw: bytes
    group: Group
    noted: Sequence[Noted]

    def add_to(self, listing: Listing) -> None:
        listing.add(self.raw, self.group, self.noted)


def read_request(form: Form, body: bytes, images: Images) -> ModelCall:
    """One request on its own, as a dialect's `read_request` promises."""
    drawn = at_once(outline(body, form.field, form.what))
    settings = form.settings(outer_of(drawn))
    listing = Listing(drawn.head)
    for chapter in at_once(chapters(form, drawn, len(drawn.head), 0, Around(images))):
        chapter.add_to(listing)
    return call_of(form, listing, settings)


def outer_of(drawn: Outline) -> bytes:
    """The request with an empty list."""
    return drawn.head + drawn.after


def chapters(form: Form, drawn: Outline, at: int, first: int, around: Around) -> Steps[list[Chapter]]:
    """The groups of an outline, which begins at the offset `at` of the body; the first element there has the index
    `first` in the list."""
    found: list[Chapter] = []
    text = _Text(drawn.texts, at)
    number = 0
    rested_at, rested_number = at, 0
    for group in form.groups(drawn.elements, first, around):
        number += group.elements
        end = drawn.ends[number - 1]
        if end - text.at > STEP_BYTES:
            # One that is so long is read in one step and copied in another.
            yield
        found.append(Chapter(text.up_to(end), group, around.take_noted()))
        if end - rested_at > STEP_BYTES or number - rested_number > STEP_ELEMENTS:
            rested_at, rested_number = end, number
            yield
    return found


class _Text:
    """A text in slices, read from one offset to the next."""

    def __init__(self, texts: list[bytes], at: int) -> None:
        self._texts = iter(texts)
        self._slice = b""
        self._begins = self.at = at

    def up_to(self, end: int) -> bytes:
        pieces = []
        while end > self._begins + len(self._slice):
            pieces.append(self._slice[self.at - self._begins :])
            self.at = self._begins = self._begins + len(self._slice)
            self._slice = next(self._texts)
        pieces.append(self._slice[self.at - self._begins : end - self._begins])
        self.at = end
        return b"".join(pieces)


def call_of(form: Form, listing: Listing, settings: Settings) -> ModelCall:
    return ModelCall(
        model=settings.model,
        messages=(*settings.opening, *listing.messages),
        tools=settings.tools,
        sampling=settings.sampling,
        stream=settings.stream,
        return_tokens=settings.return_tokens,
        extra=settings.extra,
        dialect=form.name,
        source=Written(listing, settings),
    )
