"""JSON as chat templates print it: the way of Python's own printer, and no escapes for letters."""

from __future__ import annotations

import json
from typing import Any

from rollwright.wire import ToolSpec


def printed(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def is_json(text: str) -> bool:
    """Whether a text is JSON as every reader has it: without words for what is no number."""
    try:
        json.loads(text, parse_constant=_no_constant)
    except ValueError:
        return False
    return True


def _no_constant(name: str) -> None:
    raise ValueError(name)


def overlap(text: str, tail: str) -> int:
    """How many characters at the end of `text` may be the beginning of `tail`, or all of it."""
    return next((length for length in range(min(len(text), len(tail)), 0, -1) if text.endswith(tail[:length])), 0)


def tool_object(tool: ToolSpec) -> dict[str, Any]:
    """A tool as requests carry it. What is empty is left out, as our dialects do."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = tool.parameters
    return {"type": "function", "function": function}
