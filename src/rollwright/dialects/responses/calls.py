"""The three ways in which the Responses API calls a tool: a function with JSON arguments, a custom tool with free text,
and the shell with an action. Here all are tool calls with JSON text, so that any engine can make them: free text is the
one string in an object, and the shell is a tool of that name. Tools that are declared in a namespace have its name
before their own, so that engines without namespaces can tell them apart.

A call is written in the way of the tool that it names, which the request declared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import orjson
from msgspec import Raw, Struct

from rollwright.dialects.forms import ToolWay
from rollwright.dialects.jsontext import dumps, json_object, new_id, raw_text, string
from rollwright.dialects.sources import source_of
from rollwright.wire import ModelCall, ToolCall, ToolSpec, WireError

FUNCTION, CUSTOM, SHELL = "function_call", "custom_tool_call", "local_shell_call"
CALLS = frozenset({FUNCTION, CUSTOM, SHELL})
OUTPUTS = frozenset({f"{FUNCTION}_output", f"{CUSTOM}_output", f"{SHELL}_output"})
DELTAS = {FUNCTION: "response.function_call_arguments", CUSTOM: "response.custom_tool_call_input"}
"""What the events of a call that is being written are named after. The shell is called all at once."""
INPUT_BEGINS, INPUT_ENDS = '{"input":', "}"
PLAIN = ToolWay(FUNCTION)
_SHELL_TOOL = "local_shell"
_NAMESPACE = "namespace"
_JOINT = "__"
"""Between a namespace and a name: every API takes it in the name of a function."""
_INPUT_SCHEMA = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
_ACTION_SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"const": "exec"},
        "command": {"type": "array", "items": {"type": "string"}},
        "env": {"type": "object", "additionalProperties": {"type": "string"}},
        "timeout_ms": {"type": "integer"},
        "working_directory": {"type": "string"},
    },
    "required": ["type", "command"],
}
_INPUT = msgspec.json.Decoder(dict[str, str])


class ToolSpecIn(Struct):
    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    tools: list[ToolSpecIn] | None = None

    @property
    def kind(self) -> str:
        """How it is called; empty for tools that the provider runs itself, and for namespaces."""
        return {"function": FUNCTION, "custom": CUSTOM, _SHELL_TOOL: SHELL}.get(self.type, "")

    @property
    def is_ours(self) -> bool:
        """Whether the program answers its calls; of a namespace, those of all tools in it."""
        return all(tool.kind for tool in self.tools or ()) if self.type == _NAMESPACE else bool(self.kind)

    def spec(self) -> ToolSpec:
        if self.kind == SHELL:
            return ToolSpec(_SHELL_TOOL, "Runs a command.", _ACTION_SCHEMA)
        if not self.name:
            raise WireError(f"a {self.type} tool has no name")
        parameters = _INPUT_SCHEMA if self.kind == CUSTOM else self.parameters or {}
        return ToolSpec(self.name, self.description or "", parameters)


def read_tools(tools: list[ToolSpecIn]) -> tuple[tuple[ToolSpec, ...], dict[str, ToolWay]]:
    """The tools whose calls the program answers, and how those are called that are no plain functions."""
    specs: list[ToolSpec] = []
    ways: dict[str, ToolWay] = {}
    for namespace, tool in _declared(tools):
        spec = tool.spec()
        name = in_namespace(namespace, spec.name)
        specs.append(ToolSpec(name, spec.description, spec.parameters))
        if namespace or tool.kind != FUNCTION:
            ways[name] = ToolWay(tool.kind, namespace, spec.name)
    return tuple(specs), ways


def _declared(tools: list[ToolSpecIn]) -> Iterator[tuple[str, ToolSpecIn]]:
    for tool in tools:
        if tool.kind:
            yield "", tool
        elif tool.is_ours:
            yield from ((tool.name, inner) for inner in tool.tools or ())


def in_namespace(namespace: str | None, name: str) -> str:
    """The one name by which a tool is known here."""
    return f"{namespace}{_JOINT}{name}" if namespace else name


def ways_in(call: ModelCall) -> dict[str, ToolWay]:
    """How the tools of a call that was read are called, as `read_tools` tells it."""
    source = source_of(call, "responses")
    return source.settings.tool_ways if source is not None else {}


def called(kind: str, name: str, arguments: str, input: str, action: Raw) -> tuple[str, str]:
    """Name and arguments of a call as we tell them."""
    if kind == CUSTOM:
        return name, f"{INPUT_BEGINS}{string(input).decode()}{INPUT_ENDS}"
    if kind == SHELL:
        return _SHELL_TOOL, raw_text(action, "the action of a shell call")
    return name, arguments


def called_out(call: ToolCall, way: ToolWay) -> dict[str, str]:
    """The id of a call, and which tool it calls."""
    named = {"namespace": way.namespace, "name": way.name} if way.namespace else {"name": call.name}
    return {"call_id": call.id, **named}


def call_out(call: ToolCall, way: ToolWay, id: str, status: str) -> dict[str, Any]:
    """A call as an output item."""
    if way.kind == CUSTOM:
        words = {**called_out(call, way), "input": input_of(call.arguments)}
        return {"type": CUSTOM, "id": id or new_id("ctc_"), **words, "status": status}
    if way.kind == SHELL:
        action = orjson.Fragment(call.arguments) if json_object(call.arguments) else {"type": "exec", "command": []}
        return {"type": SHELL, "id": id or new_id("lsh_"), "call_id": call.id, "action": action, "status": status}
    words = {**called_out(call, way), "arguments": call.arguments}
    return {"type": FUNCTION, "id": id or new_id("fc_"), **words, "status": status}


def input_of(arguments: str) -> str:
    """The free text of a call. A model that did not keep to the object has written the text itself."""
    try:
        words = _INPUT.decode(arguments)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return arguments
    return words["input"] if words.keys() == {"input"} else dumps(words).decode()
