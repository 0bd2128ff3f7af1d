"""Calls as invoke tags with a parameter tag for each argument, all calls of a turn in one section. Values stand between
their tags without a newline. Some formats say with each value whether it is a string; in others the schema tells."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollwright.renderers.contract import Status
from rollwright.renderers.script import Script
from rollwright.wire import Delta, ToolCall, ToolCallDelta, ToolSpec

from .calls_xml import as_object, escaped, typed, types_of
from .jsons import overlap, printed


@dataclass(frozen=True, slots=True)
class InvokeCalls:
    """The table's line for such calls."""

    mark: str = ""
    """Stands after the bracket of every tag."""
    typed: bool = False
    """Each value says whether it is a string."""
    empty: str = ""
    """What stands where there are no arguments."""
    lead: str = ""
    between: str = ""
    tail: str = "\n"
    bare: bool = False

    @property
    def begin(self) -> str:
        return f'<{self.mark}invoke name="'

    @property
    def end(self) -> str:
        return f"</{self.mark}invoke>"

    def write(self, script: Script, call: ToolCall) -> None:
        script.frame(self.begin)
        script.said(call.name)
        script.frame('">\n')
        arguments = as_object(call.arguments)
        if arguments is None:
            # No template can show these; they stand where the parameters would.
            script.said(call.arguments)
        elif not arguments:
            script.frame(self.empty)
        for name, value in (arguments or {}).items():
            script.frame(f'<{self.mark}parameter name="')
            script.said(name)
            told = isinstance(value, str)
            script.frame(f'" string="{"true" if told else "false"}">' if self.typed else '">')
            script.said(value if told else printed(value))
            script.frame(f"</{self.mark}parameter>\n")
        script.frame(self.end)

    def reader(self, tools: Sequence[ToolSpec], index: int, id: str) -> InvokeReader:
        return InvokeReader(self, tools, index, id)


class InvokeReader:
    """Tells the name as soon as it is there, strings as they come, and other values when they are complete."""

    def __init__(self, form: InvokeCalls, tools: Sequence[ToolSpec], index: int, id: str) -> None:
        self._tools = tools
        self._index = index
        self._id = id
        mark = re.escape(form.mark)
        kind = ' string="(true|false)"' if form.typed else "()"
        self._name = re.compile(r'([^"\n]*)">')
        self._next = re.compile(rf'\s*<{mark}parameter name="([^"\n]*)"{kind}>')
        self._close = f"</{form.mark}parameter>"
        self._types: Mapping[str, frozenset[str]] = {}
        self._named = False
        self._held = ""
        self._count = 0
        # None between parameters; else whether the value is told as a string while it comes.
        self._string: bool | None = None
        self._kinds: frozenset[str] = frozenset()
        self._status = Status.OK

    def feed(self, text: str) -> list[Delta]:
        self._held += text
        events: list[Delta] = []
        if not self._named and not self._begin(events):
            return []
        told: list[str] = []
        while self._step(told):
            pass
        return events + self._tell(told)

    def close(self, closed: bool) -> tuple[list[Delta], Status]:
        if not self._named:
            return [], Status.MALFORMED
        told: list[str] = []
        if self._string is None and not self._held.strip() and closed:
            told.append("}" if self._count else "{}")
        else:
            # What has no place in the format is told as it stands, so that nothing is lost.
            self._status = Status.BAD_ARGUMENTS
            told.append(escaped(self._held) if self._string else self._held)
        return self._tell(told), self._status

    def _tell(self, told: Sequence[str]) -> list[Delta]:
        text = "".join(told)
        return [ToolCallDelta(self._index, text)] if text else []

    def _begin(self, events: list[Delta]) -> bool:
        found = self._name.match(self._held)
        if found is None:
            return False
        self._named = True
        self._held = self._held[found.end() :]
        self._types = types_of(self._tools, found[1])
        events.append(ToolCallDelta(self._index, "", self._id, found[1]))
        return True

    def _step(self, told: list[str]) -> bool:
        """Read one more thing out of what is held. False if more text is needed."""
        if self._string is None:
            return self._open(told)
        at = self._held.find(self._close)
        if at >= 0:
            value, self._held = self._held[:at], self._held[at + len(self._close) :]
            told.append(escaped(value) + '"' if self._string else self._typed(value))
            self._string = None
            return True
        if self._string:
            keep = len(self._held) - overlap(self._held, self._close)
            told.append(escaped(self._held[:keep]))
            self._held = self._held[keep:]
        return False

    def _open(self, told: list[str]) -> bool:
        found = self._next.match(self._held)
        if found is None:
            return False
        self._held = self._held[found.end() :]
        told.append(("{" if not self._count else ", ") + printed(found[1]) + ": ")
        self._count += 1
        self._kinds = self._types.get(found[1], frozenset({"string"}))
        self._string = found[2] == "true" if found[2] else "string" in self._kinds
        if self._string:
            told.append('"')
        return True

    def _typed(self, value: str) -> str:
        """The JSON of a value that is no string: as it was written, if it is JSON at all."""
        shown, good = typed(value, self._kinds)
        self._status = self._status if good else Status.BAD_ARGUMENTS
        return shown
