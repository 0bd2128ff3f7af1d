"""Calls as Gemma 4 writes them: like JSON, but keys are bare and sorted, and strings stand between quotes that are a
control string of the vocabulary, so that nothing in them needs an escape."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollwright.renderers.contract import Status
from rollwright.renderers.script import Script
from rollwright.wire import Delta, ToolCall, ToolCallDelta, ToolSpec

from .calls_xml import as_object
from .jsons import is_json, printed

QUOTE = '<|"|>'
_HEAD = re.compile(r"\s*call:([^{]*)\{")
_KEY = re.compile(r"([^:,{}\[\]]*):\s*")
_BARE = re.compile(r"[^,{}\[\]]*")
_DEEPEST = 64


def by_key(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Sorted as templates sort: capitals are no difference."""
    return sorted(values.items(), key=lambda item: item[0].lower())


def quote(script: Script, text: str) -> None:
    script.frame(QUOTE)
    script.said(text)
    script.frame(QUOTE)


def write_value(script: Script, value: Any, *, quote_keys: bool = False) -> None:
    if isinstance(value, str):
        quote(script, value)
    elif isinstance(value, dict):
        script.frame("{")
        write_fields(script, value, quote_keys=quote_keys)
        script.frame("}")
    elif isinstance(value, list):
        for at, item in enumerate(value):
            script.frame("," if at else "[")
            write_value(script, item, quote_keys=quote_keys)
        script.frame("]" if value else "[]")
    elif value is None or isinstance(value, bool):
        script.said(printed(value))
    else:
        script.said(str(value))


def write_fields(script: Script, fields: Mapping[str, Any], *, quote_keys: bool = False) -> None:
    for at, (key, value) in enumerate(by_key(fields)):
        script.frame("," if at else "")
        if quote_keys:
            quote(script, key)
        else:
            script.said(key)
        script.frame(":")
        write_value(script, value, quote_keys=quote_keys)


@dataclass(frozen=True, slots=True)
class GemmaCalls:
    """The table's line for such calls."""

    begin: str
    end: str
    lead: str = ""
    between: str = ""
    tail: str = ""
    bare: bool = False

    def write(self, script: Script, call: ToolCall) -> None:
        script.frame(self.begin + "call:")
        script.said(call.name)
        script.frame("{")
        arguments = as_object(call.arguments)
        if arguments is None:
            # No template can show these; they stand where the arguments would.
            script.said(call.arguments)
        write_fields(script, arguments or {})
        script.frame("}" + self.end)

    def reader(self, tools: Sequence[ToolSpec], index: int, id: str) -> GemmaReader:
        return GemmaReader(index, id)


class GemmaReader:
    """Tells the name as soon as the arguments begin, and the arguments when the call is complete. Their text is the
    JSON object that they mean; numbers are kept as they were written."""

    def __init__(self, index: int, id: str) -> None:
        self._index = index
        self._id = id
        self._named = False
        self._held = ""

    def feed(self, text: str) -> list[Delta]:
        self._held += text
        found = None if self._named else _HEAD.match(self._held)
        if found is None:
            return []
        self._named, self._held = True, self._held[found.end() :]
        return [ToolCallDelta(self._index, "", self._id, found[1])]

    def close(self, closed: bool) -> tuple[list[Delta], Status]:
        if not self._named:
            return [], Status.MALFORMED
        try:
            told, stop = _fields(self._held, 0, 0)
            whole = closed and not self._held[stop:].strip()
        except ValueError:
            whole = False
        if whole:
            return [ToolCallDelta(self._index, told)], Status.OK
        # What has no place in the format is told as it stands, so that nothing is lost.
        return [ToolCallDelta(self._index, self._held)] if self._held else [], Status.BAD_ARGUMENTS


def _fields(text: str, at: int, depth: int) -> tuple[str, int]:
    """The JSON of the object whose brace was opened before `at`, and where it ends. ValueError if it is none."""
    fields: list[str] = []
    while not _closes(text, at, "}", fields):
        at += bool(fields)
        found = _KEY.match(text, at)
        if found is None:
            raise ValueError("a field has no key")
        value, at = _value(text, found.end(), depth + 1)
        fields.append(f"{printed(found[1])}: {value}")
    return "{" + ", ".join(fields) + "}", at + 1


def _closes(text: str, at: int, bracket: str, before: list[str]) -> bool:
    """Whether the bracket closes here. Between two members there is a comma."""
    if text.startswith(bracket, at):
        return True
    if at >= len(text) or (before and text[at] != ","):
        raise ValueError("a member is followed by neither a comma nor the end")
    return False


def _value(text: str, at: int, depth: int) -> tuple[str, int]:
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    if text.startswith(QUOTE, at):
        stop = text.index(QUOTE, at + len(QUOTE))
        return printed(text[at + len(QUOTE) : stop]), stop + len(QUOTE)
    if text.startswith("{", at):
        return _fields(text, at + 1, depth)
    if text.startswith("[", at):
        return _items(text, at + 1, depth)
    found = _BARE.match(text, at)
    assert found is not None
    if not is_json(found[0]):
        raise ValueError("a value is neither quoted nor JSON")
    return found[0].strip(), found.end()


def _items(text: str, at: int, depth: int) -> tuple[str, int]:
    items: list[str] = []
    while not _closes(text, at, "]", items):
        at += bool(items)
        value, at = _value(text, at, depth + 1)
        items.append(value)
    return "[" + ", ".join(items) + "]", at + 1
