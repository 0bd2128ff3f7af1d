"""Items of the Responses API, to and from parts.

An answer is a list of items there (reasoning, message, function call) and one assistant message here, so neighbouring
items of the model are one message. Kinds of items that we do not know are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from msgspec import Struct

from rollwright.dialects.images import Images, get_data_url, put_data_url
from rollwright.dialects.jsontext import new_id
from rollwright.dialects.requests import split_heard, write_content
from rollwright.wire import Image, Message, Part, Reasoning, Role, Text, ToolCall, ToolResult, WireError

TEXT_TYPES = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


class ContentIn(Struct):
    type: str
    text: str = ""
    refusal: str = ""
    image_url: str | None = None


class ItemIn(Struct):
    """One wide struct for all kinds, because the type of a message may be left out."""

    type: str = "message"
    role: str = ""
    content: str | list[ContentIn] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str | list[ContentIn] | None = None
    summary: list[ContentIn] | None = None
    encrypted_content: str | None = None


def read_items(items: Sequence[ItemIn], images: Images) -> Iterator[Message]:
    """The conversation. What the model said in one go is one message."""
    said: list[Part] = []
    for item in items:
        parts = tuple(_said(item, images))
        if parts or _is_said(item):
            said += parts
            continue
        if said:
            yield Message("assistant", tuple(said))
            said = []
        yield _heard(item, images)
    if said:
        yield Message("assistant", tuple(said))


def _is_said(item: ItemIn) -> bool:
    return item.type in ("reasoning", "function_call") or (item.type == "message" and item.role == "assistant")


def _said(item: ItemIn, images: Images) -> Iterator[Part]:
    if item.type == "function_call":
        if not (item.call_id and item.name):
            raise WireError("a function_call item needs a call_id and a name")
        yield ToolCall(item.call_id, item.name, item.arguments)
    elif item.type == "reasoning":
        yield Reasoning(reasoning_text(item), item.encrypted_content or "")
    elif item.type == "message" and item.role == "assistant":
        yield from (part for part in _content(item.content, images) if part != Text(""))


def reasoning_text(item: ItemIn) -> str:
    """The reasoning itself where it is shown, its summary otherwise."""
    content = "".join(part.text for part in item.content or () if isinstance(part, ContentIn))
    return content or "\n\n".join(part.text for part in item.summary or ())


def _heard(item: ItemIn, images: Images) -> Message:
    if item.type == "function_call_output":
        if not item.call_id:
            raise WireError("a function_call_output item needs a call_id")
        return Message("tool", (ToolResult(item.call_id, _content(item.output, images)),))
    if item.type != "message":
        raise WireError(f"input items of type {item.type[:60]!r} are not known here")
    if item.role not in _ROLES:
        raise WireError(f"a message has the role {item.role[:60]!r}; it must be one of {', '.join(_ROLES)}")
    return Message(_ROLES[item.role], _content(item.content, images))


def _content(content: str | list[ContentIn] | None, images: Images) -> tuple[Text | Image, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (Text(content),)
    return tuple(_part(part, images) for part in content)


def _part(part: ContentIn, images: Images) -> Text | Image:
    if part.type in TEXT_TYPES:
        return Text(part.text)
    if part.type == "refusal":
        return Text(part.refusal)
    if part.type == "input_image" and part.image_url is not None:
        return put_data_url(images, part.image_url)
    raise WireError(f"content of type {part.type[:60]!r} is not known here, or not without its bytes")


def write_items(message: Message, images: Images) -> Iterator[dict[str, Any]]:
    """One message of a conversation as input items."""
    if message.role == "assistant":
        yield from _write_said(message)
        return
    results, content = split_heard(message)
    for result in results:
        output = write_content(result.content, _write_part, images)
        yield {"type": "function_call_output", "call_id": result.call_id, "output": output}
    if content is not None:
        yield {"type": "message", "role": message.role, "content": write_content(content, _write_part, images)}


def _write_said(message: Message) -> Iterator[dict[str, Any]]:
    for is_text, run in groupby(message.parts, key=lambda part: isinstance(part, Text)):
        if is_text:
            texts = [{"type": "output_text", "text": part.text} for part in run if isinstance(part, Text)]
            yield {"type": "message", "role": "assistant", "content": texts}
        else:
            yield from map(_write_other, run)


def _write_other(part: Part) -> dict[str, Any]:
    if isinstance(part, ToolCall):
        return {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": part.arguments}
    if isinstance(part, Reasoning):
        return _write_reasoning(part)
    raise WireError(f"an assistant message cannot hold a {type(part).__name__}")


def _write_reasoning(part: Reasoning) -> dict[str, Any]:
    """A provider that signs its reasoning shows a summary and refuses more; an open model takes its own words back."""
    item: dict[str, Any] = {"type": "reasoning", "id": new_id("rs_"), "summary": []}
    if part.signature:
        item["encrypted_content"] = part.signature
        item["summary"] = [{"type": "summary_text", "text": part.text}] if part.text else []
    else:
        item["content"] = [{"type": "reasoning_text", "text": part.text}]
    return item


def _write_part(part: Text | Image, images: Images) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    return {"type": "input_image", "detail": "auto", "image_url": get_data_url(images, part)}
