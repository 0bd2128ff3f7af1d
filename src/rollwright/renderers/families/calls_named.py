"""Calls as a name and the JSON of the arguments, with constants of the format before, between and after them. The text
of the arguments is written as the message has it, and told as the model wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollwright.renderers.contract import Status
from rollwright.renderers.script import Script
from rollwright.wire import Delta, ToolCall, ToolCallDelta, ToolSpec

from .calls_json import is_object


@dataclass(frozen=True, slots=True)
class NamedCalls:
    """The table's line for such calls."""

    begin: str
    end: str
    middle: str
    """Between the name and the arguments."""
    lead: str = ""
    between: str = ""
    tail: str = ""
    bare: bool = False

    def write(self, script: Script, call: ToolCall) -> None:
        script.frame(self.begin)
        script.said(call.name)
        script.frame(self.middle)
        script.said(call.arguments)
        script.frame(self.end)

    def reader(self, tools: Sequence[ToolSpec], index: int, id: str) -> NamedReader:
        return NamedReader(self, index, id)


class NamedReader:
    """Tells the name as soon as it is there, and the arguments as they come."""

    def __init__(self, form: NamedCalls, index: int, id: str) -> None:
        self._middle = form.middle
        self._index = index
        self._id = id
        self._named = False
        self._held = ""
        self._arguments: list[str] = []

    def feed(self, text: str) -> list[Delta]:
        if self._named:
            self._arguments.append(text)
            return [ToolCallDelta(self._index, text)]
        self._held += text
        name, middle, arguments = self._held.partition(self._middle)
        if not middle:
            return []
        self._named = True
        events: list[Delta] = [ToolCallDelta(self._index, "", self._id, name)]
        return events + self.feed(arguments) if arguments else events

    def close(self, closed: bool) -> tuple[list[Delta], Status]:
        if not self._named:
            return [], Status.MALFORMED
        return [], Status.OK if is_object("".join(self._arguments)) else Status.BAD_ARGUMENTS
