"""Calls as tags in tags: a function, and a tag for each parameter whose value stands on lines of its own. Strings are
written bare and everything else as JSON, so only the tool's schema tells them apart."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollwright.renderers.contract import Status
from rollwright.renderers.script import Script
from rollwright.wire import Delta, ToolCall, ToolCallDelta, ToolSpec

from .jsons import is_json, overlap, printed

_FUNCTION = re.compile(r"\s*<function=([^>\n]*)>\n?")
_NEXT = re.compile(r"\s*(?:<parameter=([^>\n]*)>\n?|(</function>))")
_CLOSE = "</parameter>"
_PYTHON = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True, slots=True)
class XmlCalls:
    """The table's line for such calls."""

    begin: str
    end: str
    value: Callable[[Any], str]
    """How the template writes a value that is neither a string nor a container."""
    lead: str = ""
    between: str = ""
    tail: str = ""
    bare: bool = False

    def write(self, script: Script, call: ToolCall) -> None:
        script.frame(f"{self.begin}\n<function=")
        script.said(call.name)
        script.frame(">\n")
        arguments = as_object(call.arguments)
        if arguments is None:
            # No template can show these; they stand where the parameters would.
            script.said(call.arguments)
        for name, value in (arguments or {}).items():
            script.frame("<parameter=")
            script.said(name)
            script.frame(">\n")
            script.said(self._shown(value))
            script.frame("\n</parameter>\n")
        script.frame(f"</function>\n{self.end}")

    def _shown(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        return printed(value) if isinstance(value, dict | list) else self.value(value)

    def reader(self, tools: Sequence[ToolSpec], index: int, id: str) -> XmlReader:
        return XmlReader(tools, index, id)


def as_object(text: str) -> dict[str, Any] | None:
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


class XmlReader:
    """Tells the name as soon as it is there, strings as they come, and other values when they are complete.

    The arguments' text is the JSON object that the parameters mean, printed as templates print JSON.
    """

    def __init__(self, tools: Sequence[ToolSpec], index: int, id: str) -> None:
        self._tools = tools
        self._index = index
        self._id = id
        self._held = ""
        self._types: Mapping[str, frozenset[str]] = {}
        self._named = self._done = False
        self._status = Status.OK
        self._count = 0
        # None between parameters; else whether the value is told as a string while it comes.
        self._string: bool | None = None
        self._kinds: frozenset[str] = frozenset()

    def feed(self, text: str) -> list[Delta]:
        self._held += text
        told: list[str] = []
        events: list[Delta] = []
        if not self._named:
            found = _FUNCTION.match(self._held)
            # The newline after the tag belongs to it, and may still come.
            if found is None or found.end() == len(self._held):
                return []
            self._begin(found, events)
        while self._step(told):
            pass
        if told:
            events.append(ToolCallDelta(self._index, "".join(told)))
        return events

    def close(self, closed: bool) -> tuple[list[Delta], Status]:
        events: list[Delta] = []
        if not self._named:
            found = _FUNCTION.match(self._held)
            if found is None:
                return [], Status.MALFORMED
            self._begin(found, events)
        told: list[str] = []
        while self._step(told, last=True):
            pass
        if not self._done or self._held.strip():
            # What has no place in the format is told as it stands, so that nothing is lost.
            self._status = Status.BAD_ARGUMENTS
            told.append(escaped(self._held) if self._string else self._held)
        if told := [text for text in told if text]:
            events.append(ToolCallDelta(self._index, "".join(told)))
        return events, self._status

    def _begin(self, found: re.Match[str], events: list[Delta]) -> None:
        self._named = True
        self._held = self._held[found.end() :]
        self._types = types_of(self._tools, found[1])
        events.append(ToolCallDelta(self._index, "", self._id, found[1]))

    def _step(self, told: list[str], last: bool = False) -> bool:
        """Read one more thing out of what is held. False if more text is needed."""
        if self._done or not self._held:
            return False
        if self._string is None:
            return self._open(told, last)
        at = self._held.find(_CLOSE)
        if at < 0:
            return self._string and self._stream(told)
        value = self._held[:at].removesuffix("\n")
        self._held = self._held[at + len(_CLOSE) :]
        told.append(escaped(value) + '"' if self._string else self._typed(value))
        self._string = None
        return True

    def _open(self, told: list[str], last: bool) -> bool:
        found = _NEXT.match(self._held)
        if found is None or (found.end() == len(self._held) and not last and found[2] is None):
            return False
        self._held = self._held[found.end() :]
        if found[2]:
            self._done = True
            told.append("}" if self._count else "{}")
            return False
        told.append(("{" if not self._count else ", ") + printed(found[1]) + ": ")
        self._count += 1
        self._kinds = self._types.get(found[1], frozenset({"string"}))
        self._string = "string" in self._kinds
        if self._string:
            told.append('"')
        return True

    def _stream(self, told: list[str]) -> bool:
        """Tell what of a string cannot belong to its end."""
        # A closing tag may have a newline before it, which then belongs to it.
        keep = len(self._held) - max(overlap(self._held, tail) for tail in (_CLOSE, "\n" + _CLOSE))
        told.append(escaped(self._held[:keep]))
        self._held = self._held[keep:]
        return False

    def _typed(self, value: str) -> str:
        """The JSON of a value that is no string: as it was written, if it is JSON at all."""
        shown, good = typed(_PYTHON.get(value, value), self._kinds)
        self._status = self._status if good else Status.BAD_ARGUMENTS
        return shown


def typed(value: str, kinds: frozenset[str]) -> tuple[str, bool]:
    """The JSON of a value that is no string, as it was written, and whether the schema can mean it."""
    return (value, True) if is_json(value) else (printed(value), not kinds)


def escaped(text: str) -> str:
    return printed(text)[1:-1]


def types_of(tools: Sequence[ToolSpec], name: str) -> dict[str, frozenset[str]]:
    """The JSON types that each parameter of a tool may have; none for a parameter that may be anything."""
    for tool in tools:
        if tool.name == name:
            fields = tool.parameters.get("properties")
            return {key: _kinds(field) for key, field in fields.items()} if isinstance(fields, dict) else {}
    return {}


def _kinds(schema: Any) -> frozenset[str]:
    if not isinstance(schema, dict):
        return frozenset()
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(kind for kind in declared if isinstance(kind, str))
    if isinstance(schema.get("enum"), list):
        return (
            frozenset({"string"}) if any(isinstance(value, str) for value in schema["enum"]) else frozenset({"number"})
        )
    choices = [choice for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list) for choice in schema[key]]
    return frozenset().union(*map(_kinds, choices))
