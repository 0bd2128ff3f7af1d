"""Calls as a name and pairs of tags, one for the key and one for the value (GLM). Strings are written bare and all
else as JSON, so only the tool's schema tells them apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollwright.renderers.contract import Status
from rollwright.renderers.script import Script
from rollwright.wire import Delta, ToolCall, ToolCallDelta, ToolSpec

from .calls_xml import as_object, typed, types_of
from .jsons import printed

_NAME = re.compile(r"\s*([^\s<]+)\s*")
_PAIR = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PairCalls:
    """The table's line for such calls. `line` is what ends each line, or nothing."""

    begin: str
    end: str
    line: str
    lead: str = ""
    between: str = ""
    tail: str = ""
    bare: bool = False

    def write(self, script: Script, call: ToolCall) -> None:
        script.frame(self.begin)
        script.said(call.name)
        script.frame(self.line)
        arguments = as_object(call.arguments)
        if arguments is None:
            # No template can show these; they stand where the pairs would.
            script.said(call.arguments)
        for name, value in (arguments or {}).items():
            script.frame("<arg_key>")
            script.said(name)
            script.frame(f"</arg_key>{self.line}<arg_value>")
            script.said(value if isinstance(value, str) else printed(value))
            script.frame(f"</arg_value>{self.line}")
        script.frame(self.end)

    def reader(self, tools: Sequence[ToolSpec], index: int, id: str) -> PairReader:
        return PairReader(tools, index, id)


class PairReader:
    """Tells the name as soon as something follows it, and each argument when it is complete. The arguments' text is the
    JSON object that the pairs mean, printed as templates print JSON."""

    def __init__(self, tools: Sequence[ToolSpec], index: int, id: str) -> None:
        self._tools = tools
        self._index = index
        self._id = id
        self._held = ""
        self._name = ""
        self._types: Mapping[str, frozenset[str]] = {}
        self._count = 0
        self._bad = False

    def feed(self, text: str) -> list[Delta]:
        self._held += text
        return self._read(last=False)

    def close(self, closed: bool) -> tuple[list[Delta], Status]:
        events = self._read(last=True)
        if not self._name:
            return [], Status.MALFORMED
        if not closed or self._held.strip():
            # What has no place in the format is told as it stands, so that nothing is lost.
            rest = self._held.strip() if closed else self._held
            return [*events, *self._told(rest)], Status.BAD_ARGUMENTS
        events += self._told("}" if self._count else "{}")
        return events, Status.BAD_ARGUMENTS if self._bad else Status.OK

    def _read(self, last: bool) -> list[Delta]:
        events: list[Delta] = []
        if not self._name:
            found = _NAME.match(self._held)
            if found is None or (found.end() == len(self._held) and not last):
                return []
            self._name, self._held = found[1], self._held[found.end() :]
            self._types = types_of(self._tools, self._name)
            events.append(ToolCallDelta(self._index, "", self._id, self._name))
        while "</arg_value>" in self._held and (found := _PAIR.match(self._held)):
            self._held = self._held[found.end() :]
            events += self._told(self._pair(found[1], found[2]))
        return events

    def _pair(self, name: str, value: str) -> str:
        kinds = self._types.get(name, frozenset({"string"}))
        shown, good = (printed(value), True) if "string" in kinds else typed(value, kinds)
        self._bad |= not good
        self._count += 1
        return f"{'{' if self._count == 1 else ', '}{printed(name)}: {shown}"

    def _told(self, text: str) -> list[Delta]:
        return [ToolCallDelta(self._index, text)] if text else []
