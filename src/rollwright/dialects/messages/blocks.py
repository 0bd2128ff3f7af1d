"""Anthropic content blocks, to and from parts.

`input` of a tool call is a JSON object there and text here. Text that is a JSON object is embedded as it is and its
source is kept when read, so nothing is normalised but the space around it; no text at all is `{}`. Text that is no
JSON object, which models do write, travels as the one string in an object, and comes back as that text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import orjson
from msgspec import Raw, Struct

from rollwright.dialects.images import Images, get_base64, put_base64
from rollwright.dialects.jsontext import json_object, raw_text
from rollwright.dialects.requests import write_content
from rollwright.wire import (
    Delta,
    Image,
    Message,
    Part,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolResult,
    WireError,
)

INVALID = "__invalid_arguments__"
_REDACTED = "redacted_thinking:"
"""Marks the signature of a thinking block whose text the provider hides."""


class Source(Struct):
    type: str
    media_type: str = ""
    data: str = ""


class TextBlock(Struct, tag_field="type", tag="text"):
    text: str


class ImageBlock(Struct, tag_field="type", tag="image"):
    source: Source


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""


class RedactedBlock(Struct, tag_field="type", tag="redacted_thinking"):
    data: str


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Raw


class ToolResultBlock(Struct, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock] | None = None
    is_error: bool | None = None


Said = TextBlock | ThinkingBlock | RedactedBlock | ToolUseBlock
"""What a model says."""
Block = TextBlock | ImageBlock | ThinkingBlock | RedactedBlock | ToolUseBlock | ToolResultBlock

_WRAPPED = msgspec.json.Decoder(dict[str, str])


def read_block(block: Block, images: Images) -> Part:
    if isinstance(block, TextBlock):
        return Text(block.text)
    if isinstance(block, ImageBlock):
        return _image(block, images)
    if isinstance(block, ThinkingBlock):
        return Reasoning(block.thinking, block.signature)
    if isinstance(block, RedactedBlock):
        return Reasoning("", _REDACTED + block.data)
    if isinstance(block, ToolUseBlock):
        return ToolCall(block.id, block.name, read_input(block.input))
    return ToolResult(block.tool_use_id, _result_content(block, images), bool(block.is_error))


def _image(block: ImageBlock, images: Images) -> Image:
    if block.source.type != "base64":
        raise WireError(f"images must come as base64, not as {block.source.type[:40]!r}")
    return put_base64(images, block.source.data, block.source.media_type)


def _result_content(block: ToolResultBlock, images: Images) -> tuple[Text | Image, ...]:
    if block.content is None:
        return ()
    if isinstance(block.content, str):
        return (Text(block.content),)
    return tuple(Text(part.text) if isinstance(part, TextBlock) else _image(part, images) for part in block.content)


def read_input(raw: Raw) -> str:
    text = raw_text(raw, "the input of a tool call")
    if INVALID in text:
        try:
            wrapped = _WRAPPED.decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return text
        if wrapped.keys() == {INVALID}:
            return wrapped[INVALID]
    if not json_object(text):
        raise WireError("the input of a tool call is not a JSON object")
    return text


def said_events(blocks: list[Said]) -> Iterator[Delta]:
    """The blocks of a whole reply as the events of a stream, so that both give the same reply."""
    tools = 0
    for block in blocks:
        if isinstance(block, ToolUseBlock):
            yield ToolCallDelta(tools, read_input(block.input), block.id, block.name)
            tools += 1
        elif isinstance(block, TextBlock):
            if block.text:
                yield TextDelta(block.text)
        elif isinstance(block, ThinkingBlock):
            yield ReasoningDelta(block.thinking, block.signature)
        else:
            yield redacted_delta(block.data)


def redacted_delta(data: str) -> ReasoningDelta:
    return ReasoningDelta("", _REDACTED + data)


def redacted_data(signature: str) -> str | None:
    """The hidden block that a signature stands for, if it does."""
    return signature.removeprefix(_REDACTED) if signature.startswith(_REDACTED) else None


def write_part(part: Part, images: Images) -> dict[str, Any]:
    if isinstance(part, Image):
        source = {"type": "base64", "media_type": part.media_type, "data": get_base64(images, part)}
        return {"type": "image", "source": source}
    if isinstance(part, ToolResult):
        return _write_result(part, images)
    return write_said(part)


def write_said(part: Text | Reasoning | ToolCall) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Reasoning):
        hidden = redacted_data(part.signature)
        if hidden is not None:
            return {"type": "redacted_thinking", "data": hidden}
        return {"type": "thinking", "thinking": part.text, "signature": part.signature}
    return {"type": "tool_use", "id": part.id, "name": part.name, "input": _write_input(part.arguments)}


def write_reply_content(message: Message) -> list[dict[str, Any]]:
    said = (part for part in message.parts if isinstance(part, Text | Reasoning | ToolCall))
    return [write_said(part) for part in said]


def _write_input(arguments: str) -> Any:
    if not arguments.strip():
        return {}
    if json_object(arguments):
        return orjson.Fragment(arguments)
    return {INVALID: arguments}


def _write_result(result: ToolResult, images: Images) -> dict[str, Any]:
    out: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.call_id}
    if result.content:
        out["content"] = write_content(result.content, write_part, images)
    if result.is_error:
        out["is_error"] = True
    return out
