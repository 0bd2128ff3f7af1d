"""Messages as rows for a foreign template, and its text as pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollwright.wire import Image, Message, Reasoning, Text, ToolCall, ToolResult, ToolSpec, UsageError

from .contract import PARITY, Literals, RenderOptions
from .families.jsons import tool_object
from .generic_marks import Marks, owned
from .generic_template import ForeignTemplate, Row
from .script import Piece


@dataclass(frozen=True, slots=True)
class Habits:
    """How a template wants to be given what messages hold."""

    arguments: str = "object"
    """Arguments of calls as an object, or as the text that the model wrote."""
    reasoning: str = "reasoning_content"
    """The key that it looks for reasoning under."""
    close: str = ""
    """The control string that ends an answer; empty if none could be found."""


class ForeignModel:
    """A template with its habits, under one set of options."""

    def __init__(
        self, template: ForeignTemplate, control: re.Pattern[str], options: RenderOptions, habits: Habits | None = None
    ) -> None:
        self.template = template
        self.habits = habits or Habits()
        self._control = control
        self._options = options
        self._given: dict[str, Any] = {}
        if options.thinking is not None:
            self._given |= {"enable_thinking": options.thinking, "thinking": options.thinking}
        if options.effort:
            self._given["reasoning_effort"] = options.effort

    @property
    def literal(self) -> Literals:
        return self._options.literal

    def with_habits(self, **changes: str) -> ForeignModel:
        return ForeignModel(self.template, self._control, self._options, replace(self.habits, **changes))

    def text(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool = True) -> str:
        """The template's own text, control strings in messages included."""
        marks = Marks(self._control, PARITY, "", edges=False)
        return self._written(messages, tools, prompt, marks)

    def pieces(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool = True
    ) -> tuple[list[Piece], bool]:
        """The text in pieces, and whether it is known which of it was said. If not, the template looked into a text,
        and all that is not a control string under a literal policy counts as the format's."""
        texts = "".join(said_in(messages, tools))
        literal = self._options.literal
        edged, bare = (Marks(self._control, literal, texts, edges=edges) for edges in (True, False))
        plain = self._written(messages, tools, prompt, bare)
        marked = self._written(messages, tools, prompt, edged)
        text = bare.plain(plain)
        found = edged.read(marked)
        if found is not None and "".join([piece.text for piece in found]) == text:
            return owned(found, self.habits.close, len(messages)), True
        if self._count(plain) != self._count(marked):
            raise UsageError("a message makes a control string together with what the chat template puts beside it")
        return bare.loose(plain), False

    def _count(self, text: str) -> int:
        return sum(1 for _ in self._control.finditer(text))

    def _written(self, messages: Sequence[Message], tools: Sequence[ToolSpec], prompt: bool, marks: Marks) -> str:
        rows = [row for at, message in enumerate(messages) for row in self._rows(message, at, marks)]
        offered = [marks.schema(tool_object(tool)) for tool in tools]
        return self.template.text(rows, offered, prompt=prompt, given=self._given)

    def _rows(self, message: Message, at: int, marks: Marks) -> list[Row]:
        if message.role == "tool":
            return [
                {
                    "role": "tool",
                    "content": marks.said(_words(result.content), at, "tool"),
                    "tool_call_id": marks.broken(result.call_id, "tool"),
                }
                for result in _results(message)
            ]
        row: Row = {"role": message.role, "content": marks.said(_words(message.parts), at, message.role)}
        if any(isinstance(part, Reasoning) for part in message.parts):
            row[self.habits.reasoning] = marks.said(message.reasoning, at, message.role)
        if message.tool_calls:
            row["tool_calls"] = [self._call(call, at, marks) for call in message.tool_calls]
        return [row]

    def _call(self, call: ToolCall, at: int, marks: Marks) -> Row:
        arguments = self._arguments(call.arguments, at, marks)
        function = {"name": marks.said(call.name, at, "assistant"), "arguments": arguments}
        return {"id": marks.broken(call.id, "tool"), "type": "function", "function": function}

    def _arguments(self, text: str, at: int, marks: Marks) -> Any:
        if self.habits.arguments == "object":
            try:
                return marks.leaves(json.loads(text), at, "assistant")
            except ValueError:
                # No template can show these as an object; it may still show them as they stand.
                pass
        return marks.said(text, at, "assistant")


def _words(parts: Sequence[Any]) -> str:
    if any(isinstance(part, Image) for part in parts):
        raise UsageError("images are not rendered by a chat template that no family was proven against")
    return "".join([part.text for part in parts if isinstance(part, Text)])


def _results(message: Message) -> list[ToolResult]:
    found = [part for part in message.parts if isinstance(part, ToolResult)]
    rest = tuple(part for part in message.parts if isinstance(part, Text))
    if found and not rest:
        return found
    if found:
        raise UsageError("a message of role tool holds results and nothing else")
    return [ToolResult("", rest)]


def said_in(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[str]:
    """Everything that is said, to find marks that nobody uses."""
    said: list[str] = []
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolResult):
                said += [part.call_id, *(inner.text for inner in part.content if isinstance(inner, Text))]
            elif isinstance(part, ToolCall):
                # A character that stands escaped in the arguments comes out of them as itself.
                said += [part.id, part.name, part.arguments, _unescaped(part.arguments)]
            elif isinstance(part, Text | Reasoning):
                said.append(part.text)
    for tool in tools:
        said += [tool.name, tool.description, json.dumps(tool.parameters, ensure_ascii=False)]
    return said


def _unescaped(arguments: str) -> str:
    if "\\u" not in arguments:
        return ""
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False)
    except ValueError:
        return ""
