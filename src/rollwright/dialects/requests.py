"""What the requests of all dialects share: fields that we do not know, tools that are no functions, what is written as
it was read, and the two shapes of content. Names and places of fields are each dialect's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import orjson

from rollwright.wire import Image, Message, ModelCall, Part, Text, ToolResult, ToolSpec, WireError

from .images import Images
from .jsontext import loads, read
from .outlines import named_twice
from .sources import source_of

P = TypeVar("P", bound=Part)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_WRITTEN = ("tools", "system")
"""Known fields whose insides may hold more than we know."""


def check_no_list(elements: Sequence[object] | str | None, what: str) -> None:
    """Settings are read from a request whose list is empty; one that is not was named a second time."""
    if elements and not isinstance(elements, str):
        raise named_twice(what)


def read_outer(
    outer: bytes, known: frozenset[str], functions: Sequence[bool], what: str
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """`Settings.extra` and `Settings.written` of a request. `functions` says of each of its tools whether it is one."""
    fields = read(_FIELDS, outer, what)
    extra = {name: loads(raw, f"{what}, field {name!r},") for name, raw in fields.items() if name not in known}
    if not all(functions):
        tools = loads(fields["tools"], what)
        extra["tools"] = [tool for tool, is_function in zip(tools, functions, strict=True) if not is_function]
    return extra, {name: bytes(memoryview(fields[name])) for name in _WRITTEN if name in fields}


def read_stop(stop: str | list[str] | None) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) and stop else tuple(stop or ())


def write_list(
    call: ModelCall, dialect: str, opening: int, write: Callable[[Sequence[Message]], list[Any]], images: Images
) -> tuple[int, Any]:
    """How many messages stand before the list of a request, and the list: as it was read where the call is of this
    dialect and its messages are the same objects, by `write` elsewhere. `opening` counts where none was read."""
    source = source_of(call, dialect)
    if source is None:
        return opening, write(call.messages[opening:])
    read = source.opens(call.messages)
    opening = opening if read < 0 else read
    return opening, source.elements(call.messages[opening:], write, images)


def write_body(
    call: ModelCall,
    dialect: str,
    conversation: Mapping[str, Any],
    tool_out: Callable[[ToolSpec], dict[str, Any]],
    sampling: Mapping[str, Any],
) -> dict[str, Any]:
    """A request. `extra` comes first, so that the fields that we know win; what is None in `sampling` is not sent.
    Fields that were read in another dialect mean nothing in this one."""
    extra = call.extra if call.dialect in ("", dialect) else {}
    body = {name: value for name, value in extra.items() if name != "tools"}
    body["model"] = call.model
    body.update(conversation)
    if tools := _tools(call, dialect, extra.get("tools", ()), tool_out):
        body["tools"] = tools
    body.update((name, value) for name, value in sampling.items() if value is not None)
    if call.stream:
        body["stream"] = True
    return body


def _tools(call: ModelCall, dialect: str, others: Sequence[Any], tool_out: Callable[[ToolSpec], dict[str, Any]]) -> Any:
    source = source_of(call, dialect)
    if source is not None and source.settings.tools == call.tools and "tools" in source.settings.written:
        return orjson.Fragment(source.settings.written["tools"])
    return [*(tool_out(tool) for tool in call.tools), *others]


def write_content(
    parts: Sequence[P], part_out: Callable[[P, Images], dict[str, Any]], images: Images
) -> str | list[dict[str, Any]]:
    """One text is a plain string, which every server understands."""
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return [part_out(part, images) for part in parts]


def split_heard(message: Message) -> tuple[list[ToolResult], list[Text | Image] | None]:
    """What the model heard in one message, where each tool result is sent on its own: the results, and the content of
    the message that follows them, None if none does."""
    results: list[ToolResult] = []
    content: list[Text | Image] = []
    for part in message.parts:
        if isinstance(part, ToolResult):
            results.append(part)
        elif isinstance(part, Text | Image):
            content.append(part)
        else:
            raise WireError(f"a {message.role} message cannot hold a {type(part).__name__}")
    if message.role == "tool" and content:
        raise WireError("a tool message holds tool results and nothing else")
    follows = message.role != "tool" and (content or not message.parts)
    return results, content if follows else None
