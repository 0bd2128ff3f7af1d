"""How a dialect lays out its requests: one list of elements (messages, items), and settings around it.

Elements are read in groups, so that a list can be read from the end of any group on: nearly always a group is one
element, but what a model said in one go may be many items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Raw, Struct

from rollwright.wire import Image, Message, Sampling, ToolCall, ToolSpec, WireError

from .answers import Answers
from .images import Images, split_data_url

T = TypeVar("T")


class Group(Struct, frozen=True, gc=False):
    """Some elements of the list, and the messages that they are."""

    elements: int
    messages: tuple[Message, ...]
    closed: bool = True
    """Whether no element could belong to it, whichever follows: a later request may go on otherwise."""


class ToolWay(NamedTuple):
    """How a tool is called that is no plain function."""

    kind: str
    """The dialect's word for such calls."""
    namespace: str = ""
    """The namespace that it is declared in; empty if in none."""
    name: str = ""
    """Its name there."""


class Settings(Struct, frozen=True):
    """All that a request says outside of its list."""

    model: str
    opening: tuple[Message, ...] = ()
    """Messages that stand before those of the list."""
    tools: tuple[ToolSpec, ...] = ()
    sampling: Sampling = Sampling()
    stream: bool = False
    return_tokens: bool = False
    extra: dict[str, Any] = {}
    written: dict[str, bytes] = {}
    """Fields that are passed on as they were written, as long as what they say is not changed."""
    tool_ways: dict[str, ToolWay] = {}
    """Tools, by the names that we know them by, that are called otherwise than plain functions."""


class Noted(NamedTuple):
    """An image that the store keeps just as the request has it."""

    encoded: str
    digest: bytes
    """SHA-256 of `encoded`."""
    image: Image


_NOTHING_NOTED: Sequence[Noted] = ()


class Around:
    """What the reader of an element asks for: a place for images, and what the model has said before."""

    def __init__(self, images: Images, answers: Answers | None = None) -> None:
        self._images = images
        self._answers = answers or Answers()
        self._noted: list[Noted] = []

    def image(self, encoded: str, media_type: str) -> Image:
        image, digest = self._images.put_text(encoded, media_type)
        if digest:
            self._noted.append(Noted(encoded, digest, image))
        return image

    def image_at(self, url: str) -> Image:
        return self.image(*split_data_url(url))

    def take_noted(self) -> Sequence[Noted]:
        """The large images that were read since this was asked last, in order."""
        if not self._noted:
            return _NOTHING_NOTED
        noted, self._noted = self._noted, []
        return noted

    def call(self, id: str, name: str, arguments: str) -> ToolCall:
        """A tool call as the model wrote it, if it is the echo of one."""
        return self._answers.call(ToolCall(id, name, arguments))

    def siblings(self, call_id: str) -> frozenset[str]:
        """The ids of all calls of the answer that made this one; empty if it is not on record."""
        return self._answers.siblings(call_id)


class Form(Protocol):
    """The requests of one dialect, as a server reads them."""

    @property
    def name(self) -> str: ...
    @property
    def field(self) -> str:
        """The name of the list."""
        ...

    @property
    def what(self) -> str:
        """Begins the sentence that a peer reads if a request does not parse."""
        ...

    def settings(self, outer: bytes) -> Settings:
        """Read a request whose list is empty."""
        ...

    def groups(self, elements: Sequence[Raw], first: int, around: Around) -> Iterator[Group]:
        """Read elements, of which the first one has the index `first` in the list."""
        ...


def read_element(decoder: msgspec.json.Decoder[T], element: Raw, form: Form, index: int) -> T:
    """One element. The path of a wrong type is told from the top of the request."""
    try:
        return decoder.decode(element)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        place = f"$.{form.field}[{index}]"
        told = str(error)
        told = told.replace("`$", f"`{place}") if "`$" in told else f"{told} - at `{place}`"
        raise WireError(f"{form.what} does not parse: {told}") from error
