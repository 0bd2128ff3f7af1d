"""The tool calls that a model made in one rollout, for reading their echo.

A program sends back what the model said in its own words: it prints the JSON of arguments anew, and some send each call
next to its result instead of all calls first. The id of a call and what it says tell which one it is; the conversation
then goes on from the answer that was sampled, not from a copy that differs in a space."""

from __future__ import annotations

from typing import Any

import orjson

from rollwright.wire import Message, ToolCall

_MAX_TWINS = 16
"""Engines that number the calls of each answer from zero repeat their ids; so many calls of one id are remembered."""
_NONE: frozenset[str] = frozenset()


class Answers:
    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], list[ToolCall]] = {}
        self._siblings: dict[str, frozenset[str]] = {}

    def add(self, message: Message) -> None:
        """Remember an answer before anyone can repeat it."""
        calls = message.tool_calls
        ids = frozenset(call.id for call in calls)
        for call in calls:
            self._siblings[call.id] = ids
            twins = self._calls.setdefault((call.id, call.name), [])
            if call not in twins:
                twins.append(call)
                del twins[:-_MAX_TWINS]

    def call(self, echo: ToolCall) -> ToolCall:
        """The call on record that says the same, or else the echo itself."""
        twins = self._calls.get((echo.id, echo.name))
        if not twins or echo in twins:
            return echo
        said = _value(echo.arguments)
        return next((twin for twin in reversed(twins) if _value(twin.arguments) == said), echo)

    def siblings(self, call_id: str) -> frozenset[str]:
        return self._siblings.get(call_id, _NONE)


def _value(arguments: str) -> Any:
    """What arguments say. No text at all is an empty object for every dialect that has objects there."""
    if not arguments.strip():
        return {}
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
