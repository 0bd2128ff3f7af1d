"""What the requests of all dialects share: fields that we do not know, tools that are no functions, and the two shapes
of content. Names and places of fields are each dialect's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from rollwright.wire import Image, Message, ModelCall, Part, Text, ToolResult, ToolSpec, WireError

from .images import Images
from .jsontext import loads, unknown_fields

P = TypeVar("P", bound=Part)


def read_extra(body: bytes, known: frozenset[str], functions: Sequence[bool], what: str) -> dict[str, Any]:
    """`ModelCall.extra` of a request. `functions` says of each of its tools whether it is a function."""
    extra = unknown_fields(body, known, what)
    if not all(functions):
        tools = loads(body, what)["tools"]
        extra["tools"] = [tool for tool, is_function in zip(tools, functions, strict=True) if not is_function]
    return extra


def read_stop(stop: str | list[str] | None) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) and stop else tuple(stop or ())


def write_body(
    call: ModelCall,
    conversation: Mapping[str, Any],
    tool_out: Callable[[ToolSpec], dict[str, Any]],
    sampling: Mapping[str, Any],
) -> dict[str, Any]:
    """A request. `extra` comes first, so that the fields that we know win; what is None in `sampling` is not sent."""
    body = {name: value for name, value in call.extra.items() if name != "tools"}
    body["model"] = call.model
    body.update(conversation)
    tools = [*(tool_out(tool) for tool in call.tools), *call.extra.get("tools", ())]
    if tools:
        body["tools"] = tools
    body.update((name, value) for name, value in sampling.items() if value is not None)
    if call.stream:
        body["stream"] = True
    return body


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
