"""JSON as chat templates print it: the way of Python's own printer, and no escapes for letters."""

from __future__ import annotations

import json
from typing import Any

from rollwright.wire import ToolSpec


def printed(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def tool_object(tool: ToolSpec) -> dict[str, Any]:
    """A tool as requests carry it. What is empty is left out, as our dialects do."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = tool.parameters
    return {"type": "function", "function": function}
