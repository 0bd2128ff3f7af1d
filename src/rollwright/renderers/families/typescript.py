"""Tools as declarations in a language like TypeScript, the way gpt-oss is told them. Every space is the template's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollwright.wire import ToolSpec

from .jsons import printed

_PLAIN = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean"}


def listing(namespace: str, tools: Sequence[ToolSpec]) -> str:
    shown = "".join(map(_declared, tools))
    return f"## {namespace}\n\nnamespace {namespace} {{\n\n{shown}}} // namespace {namespace}"


def _declared(tool: ToolSpec) -> str:
    fields = tool.parameters.get("properties") or {}
    required = tool.parameters.get("required") or []
    head = f"// {tool.description}\ntype {tool.name} = "
    if not fields:
        return f"{head}() => any;\n\n"
    return head + "(_: {\n" + "".join(_field(name, spec, required) for name, spec in fields.items()) + "}) => any;\n\n"


def _field(name: str, spec: Mapping[str, Any], required: Sequence[str]) -> str:
    about = f"// {spec['description']}\n" if spec.get("description") else ""
    optional = "" if name in required else "?"
    return f"{about}{name}{optional}: {_type(spec)}{_default(spec)},\n"


def _default(spec: Mapping[str, Any]) -> str:
    if "default" not in spec:
        return ""
    if spec.get("enum"):
        return f", // default: {spec['default']}"
    return f"// default: {spec['default']}" if spec.get("oneOf") else f", // default: {printed(spec['default'])}"


def _type(spec: Mapping[str, Any]) -> str:
    kind = spec.get("type")
    null = " | null" if spec.get("nullable") else ""
    if kind == "array":
        return _array(spec.get("items")) + null
    if isinstance(kind, list) and kind:
        return " | ".join(map(str, kind))
    if spec.get("oneOf"):
        return _choices(spec["oneOf"])
    if kind == "string":
        if spec.get("enum"):
            return '"' + '" | "'.join(map(str, spec["enum"])) + '"'
        return "string" + null
    if kind == "object":
        return _object(spec)
    return _PLAIN.get(kind, "any") if isinstance(kind, str) else "any"


def _array(items: Any) -> str:
    if not items:
        return "any[]"
    kind = items.get("type")
    if isinstance(kind, str) and kind in _PLAIN:
        return _PLAIN[kind] + "[]"
    inner = _type(items)
    return "any[]" if inner == "object | object" or len(inner) > 50 else f"{inner}[]"


def _choices(choices: Sequence[Mapping[str, Any]]) -> str:
    # The template's own look for objects among the choices forgets what it found, so there is none here.
    return " | \n".join(map(_choice, choices))


def _choice(spec: Mapping[str, Any]) -> str:
    about = f"// {spec['description']}" if spec.get("description") else ""
    default = f"                    // default: {printed(spec['default'])}" if "default" in spec else ""
    return _type(spec) + about + default


def _object(spec: Mapping[str, Any]) -> str:
    fields = spec.get("properties")
    if not fields:
        return "object"
    required = spec.get("required") or []
    shown = [
        f"{name}{'' if name in required else '?'}: \n                {_type(inner)}" for name, inner in fields.items()
    ]
    return "{\n" + ", ".join(shown) + "}"
