"""Which characters of a foreign template's text somebody said, by marks that go through the template with them.

A text is marked inside its outer spaces, so that a template which strips strips the same. A control string in a text
under a literal policy is broken up by marks of its own, so that the template takes it for text, too. What comes out is
read back into pieces. If the template did something to a text that the marks did not survive, `read` says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from rollwright.wire import Role, UsageError

from .contract import LiteralPolicy, Literals
from .script import Piece

_WIDTH = 4
_STARTS = (0xFDD0, 0x10FFD0)
"""Two ranges of thirty-two characters that mean nothing; one is free of whatever the texts hold."""


class Marks:
    """Marks for one render. `edges` says whether texts are marked, or broken-up control strings only."""

    def __init__(self, control: re.Pattern[str], literal: Literals, texts: str, *, edges: bool) -> None:
        start = next((start for start in _STARTS if not _range(start).search(texts)), None)
        if start is None:
            raise UsageError("the messages use all characters that are left for marks")
        self.begin, self.end, self.inner = (chr(start + at) for at in range(3))
        self._digits = [chr(start + 16 + at) for at in range(16)]
        self._values = {digit: at for at, digit in enumerate(self._digits)}
        self._any = _range(start)
        # A template that prints JSON in ASCII would spell the marks out.
        self._escaped = json.dumps(self.inner)[1:-1]
        self._spelled = self._escaped in texts
        self._control = control
        self._literal = literal
        self._edges = edges
        self._owners: list[tuple[int, Role]] = []

    def said(self, text: str, message: int, role: Role) -> str:
        """`text` with its marks."""
        words = text.strip()
        if not words:
            return text
        broken = self.broken(words, role)
        if not self._edges:
            return text.replace(words, broken, 1) if broken is not words else text
        at = text.index(words)
        number = len(self._owners)
        self._owners.append((message, role))
        digits = "".join(self._digits[number >> shift & 15] for shift in range(4 * (_WIDTH - 1), -1, -4))
        return f"{text[:at]}{self.begin}{digits}{broken}{self.end}{text[at + len(words) :]}"

    def broken(self, text: str, role: Role) -> str:
        """`text` with its control strings broken up, under a policy that makes them text."""
        if self._literal.of(role) is LiteralPolicy.PARITY or not self._control.search(text):
            return text
        inner = self.inner
        return self._control.sub(lambda found: f"{inner}{found[0][:1]}{inner}{found[0][1:]}{inner}", text)

    def leaves(self, value: Any, message: int, role: Role) -> Any:
        """A JSON value with its strings marked."""
        if isinstance(value, str):
            return self.said(value, message, role)
        if isinstance(value, list):
            return [self.leaves(item, message, role) for item in value]
        if isinstance(value, dict):
            return {self.broken(key, role): self.leaves(item, message, role) for key, item in value.items()}
        return value

    def schema(self, value: Any) -> Any:
        """A tool's JSON. Templates look at its words, so only strings with control strings are touched."""
        if isinstance(value, str):
            return self.broken(value, "system")
        if isinstance(value, list):
            return [self.schema(item) for item in value]
        if isinstance(value, dict):
            return {self.broken(key, "system"): self.schema(item) for key, item in value.items()}
        return value

    def plain(self, text: str) -> str:
        """`text` as it is without marks."""
        if self._escaped in text and not self._spelled:
            raise UsageError("the chat template escapes characters, so that what was said cannot be followed")
        return self._any.sub("", text)

    def read(self, text: str) -> list[Piece] | None:
        """The pieces of a marked text; None if its marks are not in order. Frames are the format's, message -1."""
        pieces: list[Piece] = []
        at = 0
        while at < len(text):
            start = text.find(self.begin, at)
            stop = text.find(self.end, start)
            stray = text.find(self.end, at)
            if start < 0:
                if stray >= 0:
                    return None
                return pieces + self._frames(text[at:])
            if stop < 0 or stray < start or text.find(self.begin, start + 1, stop) >= 0:
                return None
            pieces += self._frames(text[at:start])
            number = 0
            for digit in text[start + 1 : start + 1 + _WIDTH]:
                number = number << 4 | self._values[digit]
            message, role = self._owners[number]
            words = text[start + 1 + _WIDTH : stop].replace(self.inner, "")
            pieces.append(Piece(words, self._literal.of(role), message, role))
            at = stop + 1
        return pieces

    def loose(self, text: str) -> list[Piece]:
        """The pieces of a text without edges: all of it is the format's except control strings that were broken up."""
        return self._frames(text)

    def _frames(self, text: str) -> list[Piece]:
        """What the template wrote, with control strings of the tool list as said by the system."""
        pieces: list[Piece] = []
        inner = re.escape(self.inner)
        at = 0
        for found in re.finditer(f"{inner}(.){inner}(.*?){inner}", text, re.DOTALL):
            pieces += _frame(text[at : found.start()])
            policy = self._literal.system if self._literal.system is not LiteralPolicy.PARITY else LiteralPolicy.LITERAL
            pieces.append(Piece(found[1] + found[2], policy, -1, "system"))
            at = found.end()
        return pieces + _frame(text[at:])


def _frame(text: str) -> list[Piece]:
    return [Piece(text, None, -1, "system")] if text else []


def _range(start: int) -> re.Pattern[str]:
    return re.compile(f"[{chr(start)}-{chr(start + 31)}]")


def owned(pieces: Sequence[Piece], close: str, total: int) -> list[Piece]:
    """Frames given to the messages that they stand beside: up to a close, to whoever spoke before, else to whoever
    speaks next. What follows the last message is the beginning of an answer."""
    found: list[Piece] = []
    owner: tuple[int, Role] = (-1, "system")
    following: tuple[int, Role] = (total, "assistant")
    heirs: list[tuple[int, Role]] = []
    for piece in reversed(pieces):
        if piece.message >= 0:
            following = piece.message, piece.role
        heirs.append(following)
    for piece, heir in zip(pieces, reversed(heirs), strict=True):
        if piece.policy is not None:
            owner = (piece.message, piece.role) if piece.message >= 0 else owner
            found.append(piece)
            continue
        head, tail = _split(piece.text, close) if heir != owner else (piece.text, "")
        if head:
            found.append(piece._replace(text=head, message=owner[0], role=owner[1]))
        if tail:
            found.append(piece._replace(text=tail, message=heir[0], role=heir[1]))
    return found


def _split(text: str, close: str) -> tuple[str, str]:
    """Up to the close with the spaces after it, and the rest. Without a close, all is the rest."""
    at = text.find(close) if close else -1
    if at < 0:
        return "", text
    at += len(close)
    while at < len(text) and text[at].isspace():
        at += 1
    return text[:at], text[at:]
