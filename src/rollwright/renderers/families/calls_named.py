"""Calls as a name and the JSON of the arguments, with constants of the format before, between and after them. The text
of the arguments is written as the message has it, and told as the model wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollwright.renderers.contract import Status
from rollwright.renderers.script import Script
from rollwright.wire import Delta, ToolCall, ToolCallDelta, ToolSpec

from .calls_json import is_object
from .jsons import overlap


@dataclass(frozen=True, slots=True)
class NamedCalls:
    """The table's line for such calls."""

    begin: str
    end: str
    middle: str
    """Between the name and the arguments."""
    before: str = ""
    """Between the tag and the name."""
    after: str = ""
    """Between the arguments and the tag."""
    lead: str = ""
    between: str = ""
    tail: str = ""
    bare: bool = False

    def write(self, script: Script, call: ToolCall) -> None:
        script.frame(self.begin + self.before)
        script.said(call.name)
        script.frame(self.middle)
        script.said(call.arguments)
        script.frame(self.after + self.end)

    def reader(self, tools: Sequence[ToolSpec], index: int, id: str) -> NamedReader:
        return NamedReader(self, index, id)


class NamedReader:
    """Tells the name as soon as it is there, and the arguments as they come."""

    def __init__(self, form: NamedCalls, index: int, id: str) -> None:
        self._form = form
        self._index = index
        self._id = id
        self._named = False
        self._held = ""
        self._arguments: list[str] = []

    def feed(self, text: str) -> list[Delta]:
        self._held += text
        if self._named:
            return self._told(len(self._held) - overlap(self._held, self._form.after))
        name, middle, arguments = self._held.partition(self._form.middle)
        if not middle:
            return []
        self._named, self._held = True, ""
        events: list[Delta] = [ToolCallDelta(self._index, "", self._id, name.removeprefix(self._form.before))]
        return events + self.feed(arguments)

    def close(self, closed: bool) -> tuple[list[Delta], Status]:
        if not self._named:
            return [], Status.MALFORMED
        # What the format puts after the arguments is no part of them; the beginning of it may be.
        events = self._told(len(self._held.removesuffix(self._form.after)) if closed else len(self._held))
        return events, Status.OK if is_object("".join(self._arguments)) else Status.BAD_ARGUMENTS

    def _told(self, length: int) -> list[Delta]:
        text, self._held = self._held[:length], self._held[length:]
        if not text:
            return []
        self._arguments.append(text)
        return [ToolCallDelta(self._index, text)]
