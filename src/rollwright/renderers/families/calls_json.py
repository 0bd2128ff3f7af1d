"""Calls as a JSON object between tags: `{"name": ..., "arguments": ...}`. The text of the arguments is never parsed and
printed again: it is written as the message has it, and told as the model wrote it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from rollwright.renderers.contract import Status
from rollwright.renderers.script import Script
from rollwright.wire import Delta, ToolCall, ToolCallDelta, ToolSpec

# One space after the colon belongs to the format; more of them are the model's.
_START = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:(?: |(?=[^ ]))')


class _Whole(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"")


_WHOLE = msgspec.json.Decoder(_Whole)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """The table's line for such calls."""

    begin: str
    end: str
    open: str
    """Up to the name, tag included."""
    middle: str
    """From the name to the arguments."""
    close: str
    """From the arguments on, tag included."""
    lead: str = ""
    between: str = ""
    tail: str = ""
    bare: bool = False

    def write(self, script: Script, call: ToolCall) -> None:
        script.frame(self.open)
        script.said(call.name)
        script.frame(self.middle)
        script.said(call.arguments)
        script.frame(self.close)

    def reader(self, tools: Sequence[ToolSpec], index: int, id: str) -> JsonReader:
        return JsonReader(index, id)


class JsonReader:
    """Tells the name as soon as it is there, and the arguments as they come."""

    def __init__(self, index: int, id: str, start: re.Pattern[str] = _START) -> None:
        self._index = index
        self._id = id
        self._start = start
        self._named = False
        self._held = ""
        self._arguments: list[str] = []

    def feed(self, text: str) -> list[Delta]:
        text = self._held + text
        events: list[Delta] = []
        if not self._named:
            found = self._start.match(text)
            if found is None:
                self._held = text
                return []
            self._named = True
            events.append(ToolCallDelta(self._index, "", self._id, found[1]))
            text = text[found.end() :]
        # The last brace closes the object around the arguments, if nothing but space follows.
        bare = text.rstrip()
        stop = len(bare) - 1 if bare.endswith("}") else len(text)
        self._held = text[stop:]
        return events + self._tell(text[:stop])

    def close(self, closed: bool) -> tuple[list[Delta], Status]:
        if not self._named:
            return self._close_whole()
        told = "".join(self._arguments)
        if self._held and is_object(told):
            return [], Status.OK
        # The last brace is the object's own after all, if the model broke off or forgot the one around it.
        if not closed or is_object(told + self._held):
            return self._tell(self._held), Status.BAD_ARGUMENTS
        return [], Status.BAD_ARGUMENTS

    def _tell(self, text: str) -> list[Delta]:
        if not text:
            return []
        self._arguments.append(text)
        return [ToolCallDelta(self._index, text)]

    def _close_whole(self) -> tuple[list[Delta], Status]:
        """An object that does not begin as the format says: read it when it is complete."""
        try:
            whole = _WHOLE.decode(self._held)
        except (msgspec.DecodeError, UnicodeEncodeError):
            return [], Status.MALFORMED
        text = bytes(whole.arguments or whole.parameters).decode()
        status = Status.OK if is_object(text) else Status.BAD_ARGUMENTS
        return [ToolCallDelta(self._index, text, self._id, whole.name)], status


def is_object(text: str) -> bool:
    """Whether a text is one JSON object."""
    try:
        _OBJECT.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return False
    return True
