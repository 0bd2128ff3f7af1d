"""Requests of one rollout, each read from where it first differs from an earlier one.

A program sends its whole history with every call. What a request has in common with an earlier one is compared as raw
bytes while it arrives, and let go at once; only what follows the last element in common is kept and parsed. So a turn
costs what it adds, apart from receiving it. Several conversations of one rollout (sub-agents, titles, a history that
was cut) each have their own earlier request, within a byte budget: the one that was used longest ago is forgotten
first, and is then read as a whole."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec

from rollwright.wire import Message, ModelCall

from .answers import Answers
from .forms import Around, Form, Settings
from .images import Images
from .matching import Match
from .reading import Chapter, call_of, chapters, outer_of
from .slices import Feed, outline_in_slices, outline_rest_in_slices
from .sources import Listing
from .steps import STEP_ELEMENTS, Steps, at_once

BUDGET_BYTES = 32 * 2**20
_MAX_LISTINGS = 16
_MAX_SETTINGS = 8
# A request that lacks no more than this of an earlier one takes its place: programs mark their last messages, and the
# marks move. One that lacks more is another conversation.
_REPLACED_BYTES = 64 * 2**10


class Reading(NamedTuple):
    call: ModelCall
    shared: int
    """How many of the first messages are the same objects as in the earlier request that it continues."""


class _Earlier:
    """The last request of one conversation."""

    __slots__ = ("form", "listing", "opening")

    def __init__(self, form: Form, listing: Listing, opening: tuple[Message, ...]) -> None:
        self.form = form.name
        self.listing = listing
        self.opening = opening


class Tails:
    """What one rollout has sent so far."""

    def __init__(self, images: Images, budget_bytes: int = BUDGET_BYTES) -> None:
        self._images = images
        self._budget_bytes = budget_bytes
        self._answers = Answers()
        self._earlier: list[_Earlier] = []
        """The one that was used last comes last."""
        self._settings: dict[tuple[str, bytes], Settings] = {}

    def __repr__(self) -> str:
        return f"<Tails {len(self._earlier)} requests, {self.kept_bytes} bytes>"

    @property
    def kept_bytes(self) -> int:
        return sum(len(earlier.listing.text) for earlier in self._earlier)

    def said(self, message: Message) -> None:
        """Remember an answer of the model before the program sees it, so that its echo is known."""
        self._answers.add(message)

    def intake(self, form: Form) -> Intake:
        """A place to feed the bytes of one request into, as they arrive."""
        return Intake(self, form, [earlier for earlier in self._earlier if earlier.form == form.name])

    def read(self, form: Form, body: bytes) -> Reading:
        """A request that has arrived. WireError as from `Dialect.read_request`."""
        intake = self.intake(form)
        intake.feed(body)
        return intake.finish()

    def close(self) -> None:
        """Let go of everything. Calls that are under way keep what they need."""
        self._earlier.clear()
        self._settings.clear()
        self._answers = Answers()

    # For intakes.

    def _read_whole(self, form: Form, feed: Feed) -> Steps[Reading]:
        drawn = yield from outline_in_slices(feed, form.field, form.what)
        settings = self._settings_of(form, outer_of(drawn))
        around = Around(self._images, self._answers)
        read = yield from chapters(form, drawn, len(drawn.head), 0, around)
        listing = Listing(drawn.head)
        if not drawn.head:
            return Reading(call_of(form, listing, settings), 0)
        yield from _added(listing, read)
        return self._kept(form, listing, settings)

    def _read_rest(self, form: Form, earlier: _Earlier, number: int, feed: Feed) -> Steps[Reading]:
        """`feed` is the body from a mark of the earlier request on."""
        mark, head = earlier.listing.marks[number], earlier.listing.head
        drawn = yield from outline_rest_in_slices(head, feed, mark.end, form.what)
        settings = self._settings_of(form, outer_of(drawn))
        around = Around(self._images, self._answers)
        read = yield from chapters(form, drawn, mark.end, mark.elements, around)
        shared = mark.messages if settings.opening == earlier.opening else -1
        # What is short is added to the listing itself and in one go, since another request may continue it as well;
        # what is long, to a copy that nobody knows of before it is whole.
        listing = self._continued(earlier, number, copied=len(read) > STEP_ELEMENTS)
        yield from _added(listing, read)
        return self._kept(form, listing, settings, shared)

    def _continued(self, earlier: _Earlier, number: int, *, copied: bool) -> Listing:
        """A listing that ends at the mark, to be added to. What the earlier request has beyond it is forgotten if that
        is little, and else remains another conversation."""
        listing = earlier.listing
        lacking = listing.ends[-1] - listing.ends[number]
        if lacking <= _REPLACED_BYTES and earlier in self._earlier:
            self._earlier.remove(earlier)
        return listing.up_to(number) if lacking or copied else listing

    def _kept(self, form: Form, listing: Listing, settings: Settings, shared: int = -1) -> Reading:
        self._earlier.append(_Earlier(form, listing, settings.opening))
        while len(self._earlier) > _MAX_LISTINGS or (self.kept_bytes > self._budget_bytes and self._earlier):
            del self._earlier[0]
        return Reading(call_of(form, listing, settings), shared + len(settings.opening) if shared >= 0 else 0)

    def _settings_of(self, form: Form, outer: bytes) -> Settings:
        settings = self._settings.pop((form.name, outer), None)
        if settings is None:
            settings = self._with_known_opening(form.settings(outer))
        self._settings[form.name, outer] = settings
        if len(self._settings) > _MAX_SETTINGS:
            del self._settings[next(iter(self._settings))]
        return settings

    def _with_known_opening(self, settings: Settings) -> Settings:
        """The same objects for the same words, where only something else has changed."""
        for known in self._settings.values():
            if known.opening == settings.opening:
                return msgspec.structs.replace(settings, opening=known.opening)
        return settings


def _added(listing: Listing, read: list[Chapter]) -> Steps[None]:
    for number, chapter in enumerate(read):
        if number and not number % STEP_ELEMENTS:
            yield
        chapter.add_to(listing)


class Intake:
    """One request while it arrives. It keeps the bytes from the last border in common on."""

    def __init__(self, tails: Tails, form: Form, earlier: list[_Earlier]) -> None:
        self._tails = tails
        self._form = form
        self._matches = [(Match(one.listing, tails._images), one) for one in earlier]
        self._chunks: deque[bytes] = deque()
        self._kept_from = 0
        """The offset of the first chunk that is kept."""
        self.received_bytes = 0

    def feed(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self.received_bytes += len(chunk)
        going = [match for match, _ in self._matches if match.going]
        for match in going:
            match.feed(chunk)
        # What lies before the last border is in the listing, whatever comes.
        border = max((match.border for match in going), default=0)
        while self._chunks and self._kept_from + len(self._chunks[0]) <= border:
            self._kept_from += len(self._chunks.popleft())

    def finish(self) -> Reading:
        """The call, after the last byte. The intake is used up."""
        return at_once(self.steps())

    def steps(self) -> Steps[Reading]:
        """The same, in steps if there is much to read: other requests may be read in between."""
        best = max(self._matches, key=lambda match: match[0].border, default=None)
        if best is None or best[0].number < 0:
            return (yield from self._tails._read_whole(self._form, Feed(self._chunks)))
        match, earlier = best
        rest = Feed(self._chunks, match.border - self._kept_from)
        return (yield from self._tails._read_rest(self._form, earlier, match.number, rest))
