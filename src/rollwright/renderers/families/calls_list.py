"""All calls of a turn as one list of JSON objects, each with the id of its call. A call is told when its object is
complete, since the id stands at the end of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from rollwright.renderers.contract import Attempt, Status
from rollwright.renderers.script import Script
from rollwright.wire import Delta, ToolCall, ToolCallDelta, ToolSpec

from .calls_json import is_object

_MARK = re.compile(r'[{}"]|\\.', re.DOTALL)
_BETWEEN = re.compile(r"[\s,\[\]]*")
_START = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"arguments"\s*:\s*')


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    id: str = ""


_CALL = msgspec.json.Decoder(_Call)


@dataclass(frozen=True, slots=True)
class ListedCalls:
    """The table's line for such calls. The brackets of the list are the table's `calls_open` and `calls_close`."""

    begin: str
    id_words: Callable[[str], str]
    end: str = ""
    lead: str = ""
    between: str = ", "
    tail: str = ""
    bare: bool = False

    def write(self, script: Script, call: ToolCall) -> None:
        script.frame('{"name": "')
        script.said(call.name)
        script.frame('", "arguments": ')
        script.said(call.arguments)
        script.frame(', "id": "')
        script.said(self.id_words(call.id))
        script.frame('"}')

    def reader(self, tools: Sequence[ToolSpec], index: int, id: str) -> ListReader:
        return ListReader(self.begin, index, id)


class Objects:
    """Cuts a text that comes in pieces into the JSON objects in it and what is between them."""

    def __init__(self) -> None:
        self.text = ""
        """From the end of the last object on."""
        self.between: list[str] = []
        self.depth = 0
        self._at = self._start = 0
        self._quoted = False

    def feed(self, text: str) -> list[str]:
        self.text += text
        found, stop = [], 0
        for mark in _MARK.finditer(self.text, self._at):
            self._at = mark.end()
            if self._closes(mark):
                found.append(self.text[self._start : self._at])
                self.between.append(self.text[stop : self._start])
                stop = self._at
        # A backslash that comes last has still to meet its letter.
        self._at = max(self._at, len(self.text) - self.text.endswith("\\"))
        self.text = self.text[stop:]
        self._at, self._start = self._at - stop, self._start - stop
        return found

    def _closes(self, mark: re.Match[str]) -> bool:
        sign = mark[0]
        if sign == '"':
            self._quoted = not self._quoted and self.depth > 0
        elif not self._quoted and sign == "{":
            if not self.depth:
                self._start = mark.start()
            self.depth += 1
        elif not self._quoted and sign == "}" and self.depth:
            self.depth -= 1
            return not self.depth
        return False


class ListReader:
    """Reads the whole list. `id` is that of the first call, should the model give none; the next count on."""

    def __init__(self, begin: str, index: int, id: str) -> None:
        self.attempts: list[Attempt] = []
        self.count = 0
        self.rest = ""
        """What is no call, known when the list is closed."""
        self._begin = begin
        self._index = index
        self._stem = id.removesuffix(str(index))
        self._objects = Objects()

    def feed(self, text: str) -> list[Delta]:
        return [event for whole in self._objects.feed(text) for event in self._told(whole)]

    def close(self, closed: bool) -> tuple[list[Delta], Status]:
        left, events = self._objects.text, self._broken(closed) if self._objects.depth else []
        stray = [text for text in self._objects.between if not _BETWEEN.fullmatch(text)]
        if not events and not _BETWEEN.fullmatch(left):
            stray.append(left)
        if not self.attempts and not stray:
            stray.append(left)
        if stray:
            self.rest += ("" if self.count else self._begin) + "".join(stray)
        if not self.count:
            self.attempts = [Attempt(Status.MALFORMED, -1, self.rest.removeprefix(self._begin))]
        return events, self.attempts[-1].status

    def _told(self, whole: str) -> list[Delta]:
        try:
            call = _CALL.decode(whole)
        except (msgspec.DecodeError, UnicodeEncodeError):
            self._objects.between.append(whole)
            return []
        text = bytes(call.arguments).decode()
        status = Status.OK if is_object(text) else Status.BAD_ARGUMENTS
        return self._call(status, call.name, text, call.id, whole)

    def _broken(self, closed: bool) -> list[Delta]:
        """The call that the answer broke off in, if its name can be read."""
        left = _BETWEEN.sub("", self._objects.text, count=1)
        found = _START.match(left)
        if found is None:
            return []
        whole = Objects().feed(left[found.end() :])
        text = whole[0] if whole else left[found.end() :]
        return self._call(Status.BAD_ARGUMENTS if closed else Status.UNCLOSED, found[1], text, "", left)

    def _call(self, status: Status, name: str, text: str, id: str, whole: str) -> list[Delta]:
        index = self._index + self.count
        self.attempts.append(Attempt(status, index, whole))
        self.count += 1
        return [ToolCallDelta(index, text, id or f"{self._stem}{index}", name)]
