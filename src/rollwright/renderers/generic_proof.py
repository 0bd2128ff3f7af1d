"""How a foreign template appends turns: derived from a short conversation, and proven before it is used.

What is added after an answer is what the template itself writes after a stand-in for the answer, in a conversation of
two messages. That costs what the new messages cost. It is right only if the template writes the same after any
conversation, so each shape of a turn (were there calls, was there reasoning, who speaks next) is tried with random
words and random pasts first. One difference in one id, and the shape is never extended.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from itertools import groupby, product
from typing import NamedTuple

import numpy as np

from rollwright.wire import (
    Message,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    UsageError,
    tool_result,
    user,
)  # fmt: skip
from rollwright.wire.arrays import Ids

from .generic_model import ForeignModel, said_in
from .generic_probe import ASK, TOOL, Findings
from .script import Piece

_TRIALS = 6
_KEY = re.compile("k[a-h]{7}")
"""A word that must not be lost, in whatever way the rest is printed."""
_WORDS = (
    "red", " fox", "42", " é", "日本", "🙂", "\n", "  ", "\t", ".", "{", "}", '"', "\\", "<", ">", "`", "'", "it's",
)  # fmt: skip

Read = Callable[[Ids], Message]
"""Parses an answer."""


class Shape(NamedTuple):
    """What may make a difference to how turns are appended."""

    tools: bool
    reasoned: bool
    """There is reasoning before the answer."""
    reasoning: bool
    """There is reasoning in it."""
    calls: int
    """Two stands for more."""
    answered: bool
    """Each call has its result."""
    roles: tuple[Role, ...]
    """Who speaks next. Two in a row stand for more."""


def shape_of(answer: Message, messages: Sequence[Message], *, tools: bool, reasoned: bool) -> Shape:
    calls = len(answer.tool_calls)
    results = sum(isinstance(part, ToolResult) for message in messages for part in message.parts)
    roles: list[Role] = []
    for role, group in groupby(message.role for message in messages):
        roles += [role] * min(2, len(list(group)))
    return Shape(tools, reasoned, bool(answer.reasoning), min(calls, 2), calls == results, tuple(roles))


def appended(
    model: ForeignModel, answer: Message, messages: Sequence[Message], tools: Sequence[ToolSpec]
) -> list[Piece] | None:
    """What the template writes after the close of an answer like this one; None if that cannot be told."""
    mark = "Ybiro pelg"
    while any(mark in text for text in said_in([answer, *messages], tools)):
        mark += "a"
    try:
        pieces, exact = model.pieces((*ASK, _stand_in(answer, mark), *messages), tools)
    except UsageError:
        return None
    text = "".join([piece.text for piece in pieces])
    at = text.find(mark)
    stop = text.find(model.habits.close, at)
    if not exact or not model.habits.close or min(at, stop) < 0:
        return None
    return _from(pieces, stop + len(model.habits.close))


def _stand_in(answer: Message, mark: str) -> Message:
    """An answer of the same shape that is short. Results may repeat the names and ids of calls."""
    parts: list[Reasoning | Text | ToolCall] = [Reasoning("Gawun.")] if answer.reasoning else []
    if answer.text or not answer.tool_calls:
        parts.append(Text("Yes." if answer.tool_calls else mark))
    last = json.dumps({"kufa": mark})
    parts += [ToolCall(call.id, call.name, last) for call in answer.tool_calls]
    return Message("assistant", tuple(parts))


def _from(pieces: Sequence[Piece], start: int) -> list[Piece]:
    """The pieces without the first `start` characters."""
    found, at = [], 0
    for piece in pieces:
        keep = piece.text[max(start - at, 0) :]
        at += len(piece.text)
        if keep:
            found.append(piece._replace(text=keep))
    return found


class Prover:
    """Tries shapes with random words."""

    def __init__(self, findings: Findings, encode: Callable[[str], Ids], read: Read) -> None:
        self._findings = findings
        self._model = findings.model
        self._encode = encode
        self._read = read
        self._random = random.Random(5)

    def proven(self) -> frozenset[Shape]:
        """The shapes that the template appends as derived."""
        if not self._model.habits.close:
            return frozenset()
        return frozenset(shape for shape in self._shapes() if self._holds(shape))

    def _shapes(self) -> list[Shape]:
        bools = (False, True)
        thought = bools if self._findings.thinking is not None else (False,)
        counts = (0, 1, 2) if self._findings.calls is not None else (0,)
        found = []
        for tools, reasoned, reasoning, calls in product(bools, thought, thought, counts):
            if calls and not tools:
                continue
            results: tuple[Role, ...] = tuple("tool" for _ in range(calls))
            nexts: list[tuple[Role, ...]] = [("user",), ("user", "user"), ("system", "user")]
            nexts = [results, (*results, "user"), ("user",)] if calls else nexts
            found += [
                Shape(tools, reasoned, reasoning, calls, ("tool" in roles) == bool(calls), roles) for roles in nexts
            ]
        return found

    def _holds(self, shape: Shape) -> bool:
        """Every trial that the template takes must hold, and one must be taken."""
        taken = 0
        for trial in range(_TRIALS):
            try:
                if not self._try(shape, trial):
                    return False
            except UsageError:
                continue
            taken += 1
        return taken > 0

    def _try(self, shape: Shape, trial: int) -> bool:
        tools = (TOOL,) if shape.tools else ()
        past = self._past(shape, trial)
        answer = self._answer(shape.reasoning, self._many(shape.calls), len(past))
        messages = self._next(shape, answer)
        prior = self._model.text(past, tools)
        full = self._model.text((*past, answer, *messages), tools)
        pieces = appended(self._model, answer, messages, tools)
        if pieces is None:
            return False
        added = "".join([piece.text for piece in pieces])
        tail = self._model.habits.close + added
        if not (full.startswith(prior) and full.endswith(tail) and len(full) >= len(prior) + len(tail)):
            return False
        spoken = self._encode(full[len(prior) : len(full) - len(added)])
        # How the answer itself is cut into tokens is the model's choice; what follows it is ours.
        parts = [self._encode(full[: len(full) - len(added)]), self._encode(added)]
        return (
            np.array_equal(np.concatenate(parts), self._encode(full))
            and all(word in added for text in _heard(messages) for word in _KEY.findall(text))
            and _same(self._read(spoken), answer)
        )

    # Random conversations

    def _past(self, shape: Shape, trial: int) -> list[Message]:
        """What was said before: short and long, and in every other trial with results of tools as the last thing."""
        past = [Message("system", (Text(self._words()),))] if self._random.random() < 0.5 else []
        past.append(user(self._words()))
        for left in reversed(range(max(trial % 4, int(shape.reasoned)))):
            calls = self._random.randint(0, 2) if left else trial % 2 * self._random.randint(1, 2)
            answer = self._answer(shape.reasoned, calls, len(past))
            past.append(answer)
            past += [tool_result(call.id, self._words()) for call in answer.tool_calls] or [user(self._words())]
        return past

    def _answer(self, reasoning: bool, calls: int, turn: int) -> Message:
        parts: list[Reasoning | Text | ToolCall] = [Reasoning(self._words().strip() or "so")] if reasoning else []
        if not calls or self._random.random() < 0.5:
            parts.append(Text(self._words().strip() or "yes"))
        for at in range(calls):
            arguments = json.dumps({"kufa": self._words()}, ensure_ascii=False)
            parts.append(ToolCall(f"call_{turn}_{at}", TOOL.name, arguments))
        return Message("assistant", tuple(parts))

    def _next(self, shape: Shape, answer: Message) -> list[Message]:
        found = [tool_result(call.id, self._heard()) for call in answer.tool_calls] if "tool" in shape.roles else []
        for role, group in groupby(role for role in shape.roles if role != "tool"):
            found += [Message(role, (Text(self._heard()),)) for _ in range(self._many(len(list(group))))]
        return found

    def _heard(self) -> str:
        return f"{self._words()}k{''.join(self._random.choices('abcdefgh', k=7))}{self._words()}"

    def _many(self, count: int) -> int:
        """Two stands for more."""
        return count + self._random.randint(0, 1) if count == 2 else count

    def _words(self) -> str:
        if self._random.random() < 0.3:
            return "".join(self._random.choices("abcdefgh", k=7))
        return "".join(self._random.choices(_WORDS, k=self._random.randint(1, 6)))


def _heard(messages: Sequence[Message]) -> list[str]:
    parts = [part for message in messages for part in message.parts]
    results = [inner for part in parts if isinstance(part, ToolResult) for inner in part.content]
    return [part.text for part in (*parts, *results) if isinstance(part, Text)]


def _same(read: Message, answer: Message) -> bool:
    """Whether an answer was read as it was meant. Ids of calls are the parser's own."""
    calls = [(call.name, json.loads(call.arguments)) for call in answer.tool_calls]
    try:
        found = [(call.name, json.loads(call.arguments)) for call in read.tool_calls]
    except ValueError:
        return False
    return (read.text, read.reasoning, found) == (answer.text, answer.reasoning, calls)
