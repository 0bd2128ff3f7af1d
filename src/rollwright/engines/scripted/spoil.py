"""Wrong answers that look right: the shape of an answer stays, what it says changes.

The place of the answer is found by the marks that tasks ask for: the last boxed expression, the last tagged text, what
follows ####, or else the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

from rollwright.wire import Message, Part, Text, ToolCall

_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")
_TAGGED = re.compile(r"<([A-Za-z_][\w-]*)>(.*?)</\1>", re.DOTALL)
_HASHED = re.compile(r"####\s*(.+)")
_VALUE = re.compile(r':\s*"((?:[^"\\]|\\.)*)"')
_NUMBER = re.compile(r"\d+")


def spoil(message: Message, rng: Random) -> Message:
    """`message` with another answer."""
    spoken = any(isinstance(part, Text) and part.text.strip() for part in message.parts)
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, Text):
            parts.append(Text(spoil_text(part.text, rng)))
        elif isinstance(part, ToolCall) and not spoken:
            parts.append(ToolCall(part.id, part.name, _spoil_arguments(part.arguments, rng)))
        else:
            parts.append(part)
    return Message(message.role, tuple(parts))


def spoil_text(text: str, rng: Random) -> str:
    start, end = _answer(text)
    answer = text[start:end]
    return text[:start] + _changed(answer, rng) + text[end:]


def _answer(text: str) -> tuple[int, int]:
    """Where the answer stands in `text`."""
    for pattern, group in ((_BOXED, 1), (_TAGGED, 2), (_HASHED, 1)):
        found = list(pattern.finditer(text))
        if found:
            return found[-1].span(group)
    return 0, len(text)


def _spoil_arguments(arguments: str, rng: Random) -> str:
    """Another value inside JSON text that stays JSON: letters and digits trade places with their like only."""
    found = list(_VALUE.finditer(arguments))
    if not found:
        return _with_number(arguments, rng)
    start, end = max((match.span(1) for match in found), key=lambda span: span[1] - span[0])
    value = arguments[start:end]
    changed = _with_number(value, rng) if _NUMBER.search(value) else _shifted(value)
    return arguments[:start] + changed + arguments[end:]


def _changed(answer: str, rng: Random) -> str:
    if not answer.strip():
        return answer + "?"
    if _NUMBER.search(answer):
        return _with_number(answer, rng)
    ways: list[Callable[[str], str]] = (
        [_reversed, _halved, _shifted] if len(answer.split()) > 1 else [_reversed, _shifted]
    )
    rng.shuffle(ways)
    for way in (*ways, _shifted):
        spoiled = way(answer)
        if spoiled != answer:
            return spoiled
    return answer + "?"


def _with_number(text: str, rng: Random) -> str:
    """The last number gets another first digit; it keeps its length and never begins with a new zero."""
    found = list(_NUMBER.finditer(text))
    if not found:
        return text
    at = found[-1].start()
    return text[:at] + rng.choice([digit for digit in "123456789" if digit != text[at]]) + text[at + 1 :]


def _reversed(text: str) -> str:
    return text[::-1]


def _halved(text: str) -> str:
    return text[: max(1, len(text) // 2)]


def _shifted(text: str) -> str:
    """Every plain letter becomes the next one, so the length stays and no escape is made or broken."""
    return "".join(_next_letter(char) for char in text)


def _next_letter(char: str) -> str:
    if not (char.isascii() and char.isalpha()):
        return char
    return {"z": "a", "Z": "A"}.get(char, chr(ord(char) + 1))
