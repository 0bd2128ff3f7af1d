"""A script: what a render says, in pieces, before it becomes ids. Frames come from the family's table; the rest was
said by somebody and stands under the literal policy of their role."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rollwright.wire import Image, Role, Text, UsageError
from rollwright.wire.messages import Part

from .contract import LiteralPolicy, Literals


class Piece(NamedTuple):
    text: str
    policy: LiteralPolicy | None
    """None for a frame."""
    message: int
    role: Role
    sha256: str = ""
    """Of the image that this frame stands for."""


# A render makes thousands of pieces, and this is what their class does, without its detour.
_piece = tuple.__new__


class Script:
    """Collects pieces. The table's writers call `frame` and `said`; `turn` tells whose pieces follow."""

    __slots__ = (
        "_literal", "_policy", "_role", "asks", "image", "message", "note", "pieces", "reasoned", "resumes", "speaker",
    )  # fmt: skip

    def __init__(self, literal: Literals, image: str = "") -> None:
        self.pieces: list[Piece] = []
        self.image = image
        self.reasoned = False
        """A block of reasoning was written."""
        self.asks = True
        """The prompt of an answer follows the last message."""
        self.resumes = False
        """The prompt has begun the reasoning of the answer that is to be written."""
        self.note = ""
        """What a table's writer wants to know when the tape is extended."""
        self.speaker: Role = "system"
        """Who spoke last, apart from a system whose words stand elsewhere."""
        self._literal = literal
        self.turn(-1, "system")

    def turn(self, message: int, role: Role) -> None:
        """What follows belongs to this message; -1 is the format itself."""
        self.message = message
        if role != "system":
            self.speaker = role
        self._role: Role = role
        self._policy: LiteralPolicy = getattr(self._literal, role)

    def frame(self, text: str) -> None:
        """A constant of the table."""
        if text:
            self.pieces.append(_piece(Piece, (text, None, self.message, self._role, "")))

    def said(self, text: str) -> None:
        if text:
            self.pieces.append(_piece(Piece, (text, self._policy, self.message, self._role, "")))

    def picture(self, image: Image) -> None:
        if not self.image:
            raise UsageError("this format has no images; take a multimodal member of the family or leave them out")
        self.pieces.append(Piece(self.image, None, self.message, self._role, image.sha256))

    def shown(self, parts: Sequence[Part], words: Callable[[str], str]) -> None:
        """Texts and images of one message, in order, after the template's treatment of the whole."""
        if len(parts) == 1 and isinstance(parts[0], Text):
            self.said(words(parts[0].text))
            return
        images = [part for part in parts if isinstance(part, Image)]
        mark = "\ufdd0"
        while any(mark in part.text for part in parts if isinstance(part, Text)):
            mark += "\ufdd0"
        first, *rest = words(spoken(parts, mark)).split(mark)
        self.said(first)
        for image, text in zip(images, rest, strict=True):
            self.picture(image)
            self.said(text)

    @property
    def policy(self) -> LiteralPolicy:
        """Of whoever is speaking."""
        return self._policy


def spoken(parts: Sequence[Part], image: str) -> str:
    """Texts and images of one message as one string, with `image` for each image."""
    texts = []
    for part in parts:
        if isinstance(part, Text):
            texts.append(part.text)
        elif isinstance(part, Image):
            texts.append(image)
        else:
            raise UsageError(f"a {type(part).__name__} cannot stand beside texts and images in this role")
    return "".join(texts)
