"""A request, read: whole, or from a border of its list on. Both ways give the same call and the same error."""

from __future__ import annotations

from typing import NamedTuple

from rollwright.wire import ModelCall

from .forms import Around, Form, Group, Noted, Settings
from .images import Images
from .outlines import Outline, outline
from .sources import Listing, Written
from .steps import STEP_BYTES, STEP_ELEMENTS, Steps, at_once


class Chapter(NamedTuple):
    """A group with its text."""

    raw: bytes
    group: Group
    noted: list[Noted]


def read_request(form: Form, body: bytes, images: Images) -> ModelCall:
    """One request on its own, as a dialect's `read_request` promises."""
    drawn = at_once(outline(body, form.field, form.what))
    settings = form.settings(outer_of(drawn))
    listing = Listing(drawn.head)
    for chapter in at_once(chapters(form, drawn, body[len(drawn.head) :], len(drawn.head), 0, Around(images))):
        listing.add(*chapter)
    return call_of(form, listing, settings)


def outer_of(drawn: Outline) -> bytes:
    """The request with an empty list."""
    return drawn.head + drawn.after


def chapters(form: Form, drawn: Outline, rest: bytes, at: int, first: int, around: Around) -> Steps[list[Chapter]]:
    """The groups of an outline. `rest` is the body from its offset `at` on, which is the border that the outline begins
    at; the first element there has the index `first` in the list."""
    found: list[Chapter] = []
    begin, number = at, 0
    rested_at, rested_number = at, 0
    for group in form.groups(drawn.elements, first, around):
        number += group.elements
        end = drawn.ends[number - 1]
        found.append(Chapter(rest[begin - at : end - at], group, around.take_noted()))
        begin = end
        if end - rested_at > STEP_BYTES or number - rested_number > STEP_ELEMENTS:
            rested_at, rested_number = end, number
            yield
    return found


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
