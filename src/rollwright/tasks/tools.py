"""Tools: methods that the model may call. This file reads a method into a schema, and a model's call into arguments.

What the model got wrong (broken JSON, a missing or mistyped argument, a tool that does not exist) is told to the model
as a tool result, so that it can try again. What the tool's own code got wrong is a ToolError.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from rollwright.wire import (
    Image,
    Message,
    TaskBroken,
    Text,
    ToolCall,
    ToolError,
    ToolResult,
    ToolSpec,
    WireError,
    tool_result,
)

from .marks import ROLLOUT_NAMES, Hook, HookKind, argument_names, plain_method


class ToolRefusal(Exception):
    """Raised by a tool to tell the model no. The message is what the model reads."""


class Picture(msgspec.Struct, frozen=True):
    """What a tool returns to show the model an image, alone or in a list with `Text`."""

    data: bytes
    media_type: str = "image/png"


class Gallery(Protocol):
    """Where the bytes of images are kept while a rollout needs them."""

    def put(self, data: bytes, media_type: str) -> Image: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolHook(Hook):
    spec: ToolSpec
    arguments: type[msgspec.Struct]
    """What the model's JSON is decoded into."""


def read_tool(owner: type, name: str, ours: Sequence[str] = ROLLOUT_NAMES) -> ToolHook:
    """The method `name` of `owner` as a tool. The names `ours` are injected; every other argument is the model's."""
    function = plain_method(owner, name, HookKind.TOOL)
    names = argument_names(owner, name, HookKind.TOOL, function)
    asked = [argument for argument in names if argument not in ours]
    arguments = _arguments_type(owner, name, function, asked)
    return ToolHook(
        name=name,
        kind=HookKind.TOOL,
        owner=owner.__name__,
        function=function,
        wants=tuple(argument for argument in names if argument in ours),
        is_async=inspect.iscoroutinefunction(function),
        spec=ToolSpec(name, inspect.getdoc(function) or "", _schema(owner, name, arguments)),
        arguments=arguments,
    )


def _arguments_type(owner: type, name: str, function: Callable[..., Any], asked: Sequence[str]) -> type[msgspec.Struct]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise TaskBroken(f"the type hints of tool {name!r} of {owner.__name__} do not resolve: {error}") from error
    parameters = inspect.signature(function).parameters
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for argument in asked:
        default = parameters[argument].default
        hint = hints.get(argument, Any)
        fields.append((argument, hint) if default is inspect.Parameter.empty else (argument, hint, default))
    try:
        return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
    except (TypeError, ValueError) as error:
        raise TaskBroken(f"the arguments of tool {name!r} of {owner.__name__} make no schema: {error}") from error


def _schema(owner: type, name: str, arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of the arguments, at the top level where providers want it; nested types stay in `$defs`."""
    try:
        (reference,), definitions = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    except TypeError as error:
        raise TaskBroken(f"the arguments of tool {name!r} of {owner.__name__} make no schema: {error}") from error
    schema = definitions.pop(reference["$ref"].removeprefix("#/$defs/"))
    schema.pop("title", None)
    return {**schema, "$defs": definitions} if definitions else schema


def read_arguments(hook: ToolHook, call: ToolCall) -> dict[str, Any]:
    """The model's arguments. ToolRefusal says what is wrong with them."""
    try:
        # Engines send an empty text for a tool without arguments.
        read = msgspec.json.decode(call.arguments or "{}", type=hook.arguments)
    except msgspec.ValidationError as error:
        raise ToolRefusal(f"The arguments of {hook.name} are wrong: {error}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ToolRefusal(f"The arguments of {hook.name} are not valid JSON: {error}") from error
    return {field: getattr(read, field) for field in hook.arguments.__struct_fields__}


def show_result(hook: ToolHook, call: ToolCall, value: Any, gallery: Gallery | None = None) -> Message:
    """What a tool returned, as the model sees it: text as it is, parts as they are, anything else as JSON. Pictures go
    into the gallery, and the model is shown them by their hash."""
    if value is None or isinstance(value, str):
        return tool_result(call.id, value or "")
    parts = (value,) if isinstance(value, Text | Image | Picture) else value
    if isinstance(parts, list | tuple) and parts and all(isinstance(part, Text | Image | Picture) for part in parts):
        return Message("tool", (ToolResult(call.id, tuple(_hung(hook, part, gallery) for part in parts)),))
    try:
        return tool_result(call.id, msgspec.json.encode(value).decode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(f"{hook.label} returned {type(value).__name__}, which does not go into JSON") from error


def _hung(hook: ToolHook, part: Text | Image | Picture, gallery: Gallery | None) -> Text | Image:
    if not isinstance(part, Picture):
        return part
    if gallery is None:
        raise ToolError(f"{hook.label} returned a picture where there is no place for one")
    try:
        return gallery.put(part.data, part.media_type)
    except WireError as error:
        raise ToolError(f"{hook.label} returned a picture that is none: {error}") from error


def refusal(call: ToolCall, text: str) -> Message:
    return tool_result(call.id, text, is_error=True)
