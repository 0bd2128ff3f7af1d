"""What makes two conversations the same, and the dice of one call.

A conversation is what the model would be shown: roles, reasoning, text, images, calls and their results. Ids of calls,
signatures and the cutting of text into parts are the wire's business and change nothing. The dice of a call are thrown
from the seed, the conversation and how often it was asked before, so neither order nor concurrency changes an answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b
from random import Random

import msgspec

from rollwright.wire import Image, Message, Part, Reasoning, Text, ToolCall, ToolResult, ToolSpec

from .tokens import SPECIAL

Piece = int | str
"""A special id, or text."""

_RANK: dict[type, int] = {Reasoning: 0, Text: 1, Image: 1, ToolCall: 2, ToolResult: 3}

MAX_REMEMBERED = 65536


class Draw(Random):
    """The dice of one call. `asked` tells how often its conversation was answered before."""

    asked: int = 0


def in_order(message: Message) -> tuple[Part, ...]:
    """The parts as a chat template writes them: reasoning, content, calls, results; text in one piece."""
    if len(message.parts) == 1 and isinstance(message.parts[0], Text) and message.parts[0].text:
        return message.parts
    parts: list[Part] = []
    for part in sorted(message.parts, key=lambda part: _RANK[type(part)]):
        last = parts[-1] if parts else None
        if isinstance(part, Text) and isinstance(last, Text):
            parts[-1] = Text(last.text + part.text)
        elif not (isinstance(part, Text | Reasoning) and not part.text):
            parts.append(part)
    return tuple(parts)


def pieces(part: Part) -> tuple[Piece, ...]:
    """One part as text between special ids."""
    if isinstance(part, Text):
        return (part.text,)
    if isinstance(part, Reasoning):
        return SPECIAL["think"], part.text, SPECIAL["think_end"]
    if isinstance(part, ToolCall):
        return SPECIAL["call"], part.name, SPECIAL["call_arguments"], part.arguments, SPECIAL["call_end"]
    if isinstance(part, Image):
        return SPECIAL["image"], part.sha256
    content: list[Piece] = [SPECIAL["result_error" if part.is_error else "result"]]
    for inner in part.content:
        content += pieces(inner)
    return *content, SPECIAL["result_end"]


def message_pieces(message: Message) -> list[Piece]:
    """A message between its role and its end."""
    return [piece for part in in_order(message) for piece in pieces(part)]


def tool_text(tools: Iterable[ToolSpec]) -> str:
    return msgspec.json.encode(list(tools), order="sorted").decode()


def fingerprints(messages: Iterable[Message], tools: tuple[ToolSpec, ...] = ()) -> list[bytes]:
    """One hash for each prefix of a conversation: the tools alone first, then with each message more."""
    prints = [blake2b(_sized(tool_text(tools)) if tools else b"", digest_size=16).digest()]
    for message in messages:
        prints.append(extended(prints[-1], message))
    return prints


def extended(prefix: bytes, message: Message) -> bytes:
    """The hash of a conversation that goes on with `message`."""
    written = [prefix, message.role.encode()]
    written += [b"#%d" % piece if isinstance(piece, int) else _sized(piece) for piece in message_pieces(message)]
    return blake2b(b"".join(written), digest_size=16).digest()


def _sized(text: str) -> bytes:
    """Text behind its length, so that no two conversations are written alike. A policy may say a lone surrogate."""
    data = text.encode("utf-8", "surrogatepass")
    return b"%d:%b" % (len(data), data)


def draw(seed: int, what: str, conversation: bytes, asked: int) -> Draw:
    """Dice for one purpose in one call."""
    material = b"%d:%s:%d:" % (seed, what.encode(), asked) + conversation
    rng = Draw(int.from_bytes(blake2b(material, digest_size=8).digest(), "little"))
    rng.asked = asked
    return rng


class Memory:
    """How often each conversation came and was answered. The least recently asked are forgotten past a limit."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._counts: OrderedDict[bytes, list[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def came(self, conversation: bytes) -> int:
        """Count a request; how many came before it."""
        return self._bump(conversation, 0)

    def answered(self, conversation: bytes) -> int:
        """Count an answer; how many were given before it."""
        return self._bump(conversation, 1)

    def answers(self, conversation: bytes) -> int:
        """How many were given."""
        counts = self._counts.get(conversation)
        return counts[1] if counts else 0

    def _bump(self, conversation: bytes, which: int) -> int:
        counts = self._counts.setdefault(conversation, [0, 0])
        self._counts.move_to_end(conversation)
        before = counts[which]
        counts[which] += 1
        if len(self._counts) > self._limit:
            self._counts.popitem(last=False)
        return before

    def clear(self) -> None:
        self._counts.clear()
