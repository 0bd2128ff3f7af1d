"""How Gemma 4 is told of its tools: each as a declaration with its schema, of which some words are shown and others are
not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollwright.renderers.script import Script
from rollwright.wire import ToolSpec

from .calls_gemma import by_key, quote, write_value

_STANDARD = {"description", "type", "properties", "required", "nullable"}


def write_tool(script: Script, tool: ToolSpec) -> None:
    script.frame("<|tool>declaration:")
    script.said(tool.name)
    script.frame("{description:")
    quote(script, tool.description)
    schema = tool.parameters
    if schema:
        script.frame(",parameters:{")
        if schema.get("properties"):
            script.frame("properties:{")
            _write_properties(script, schema["properties"])
            script.frame("},")
        if schema.get("required"):
            _write_required(script, schema["required"])
            script.frame(",")
        if schema.get("type"):
            script.frame("type:")
            quote(script, _upper(schema["type"]))
            script.frame("}")
    script.frame("}<tool|>")


def _write_properties(script: Script, properties: Mapping[str, Any], *, apart: bool = False) -> None:
    """The fields of an object. `apart` leaves out what describes the object itself."""
    shown = [(key, value) for key, value in by_key(properties) if not (apart and key in _STANDARD)]
    for at, (key, schema) in enumerate(shown):
        script.frame("," if at else "")
        script.said(key)
        script.frame(":{")
        _write_schema(script, schema if isinstance(schema, Mapping) else {})
        script.frame("}")


def _write_schema(script: Script, schema: Mapping[str, Any]) -> None:
    kind = _upper(schema["type"]) if "type" in schema else ""
    if schema.get("description"):
        script.frame("description:")
        quote(script, str(schema["description"]))
        script.frame(",")
    if kind == "STRING" and schema.get("enum"):
        script.frame("enum:")
        write_value(script, schema["enum"], quote_keys=True)
        script.frame(",")
    if kind == "ARRAY" and isinstance(schema.get("items"), Mapping) and schema["items"]:
        script.frame("items:{")
        _write_items(script, schema["items"])
        script.frame("},")
    script.frame("nullable:true," if schema.get("nullable") else "")
    if kind == "OBJECT":
        _write_object(script, schema)
    script.frame("type:")
    quote(script, kind)


def _write_object(script: Script, schema: Mapping[str, Any]) -> None:
    fields = schema.get("properties")
    script.frame("properties:{")
    if isinstance(fields, Mapping):
        _write_properties(script, fields)
    else:
        _write_properties(script, schema, apart=True)
    script.frame("},")
    if schema.get("required"):
        _write_required(script, schema["required"])
        script.frame(",")


def _write_items(script: Script, items: Mapping[str, Any]) -> None:
    """What an array holds. Every word of the schema is shown, in order."""
    shown = [(key, value) for key, value in by_key(items) if value is not None]
    for at, (key, value) in enumerate(shown):
        script.frame("," if at else "")
        if key == "required":
            _write_required(script, value)
            continue
        script.said(key)
        script.frame(":")
        if key == "properties":
            script.frame("{")
            _write_properties(script, value if isinstance(value, Mapping) else {})
            script.frame("}")
        elif key == "type":
            write_value(script, _upper(value) if isinstance(value, str) else [_upper(kind) for kind in value])
        else:
            write_value(script, value, quote_keys=True)


def _write_required(script: Script, names: Sequence[str]) -> None:
    script.frame("required:[")
    for at, name in enumerate(names):
        script.frame("," if at else "")
        quote(script, str(name))
    script.frame("]")


def _upper(kind: Any) -> str:
    return str(kind).upper()
