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

from rollwright.dialects.forms import Around
from rollwright.dialects.images import Images, get_base64
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


class HeardElsewhere(Struct):
    """What a provider can show its models and we cannot show others."""

    title: str | None = None


class DocumentBlock(HeardElsewhere, tag_field="type", tag="document"):
    pass


class SearchResultBlock(HeardElsewhere, tag_field="type", tag="search_result"):
    pass


class ToolReferenceBlock(HeardElsewhere, tag_field="type", tag="tool_reference"):
    pass


class SaidElsewhere(Struct):
    """Of a tool that the provider runs: the call, or what came of it."""


class ServerToolUseBlock(SaidElsewhere, tag_field="type", tag="server_tool_use"):
    pass


class WebSearchResultBlock(SaidElsewhere, tag_field="type", tag="web_search_tool_result"):
    pass


class WebFetchResultBlock(SaidElsewhere, tag_field="type", tag="web_fetch_tool_result"):
    pass


class CodeResultBlock(SaidElsewhere, tag_field="type", tag="code_execution_tool_result"):
    pass


class BashResultBlock(SaidElsewhere, tag_field="type", tag="bash_code_execution_tool_result"):
    pass


class EditorResultBlock(SaidElsewhere, tag_field="type", tag="text_editor_code_execution_tool_result"):
    pass


class ToolSearchResultBlock(SaidElsewhere, tag_field="type", tag="tool_search_tool_result"):
    pass


class McpToolUseBlock(SaidElsewhere, tag_field="type", tag="mcp_tool_use"):
    pass


class McpToolResultBlock(SaidElsewhere, tag_field="type", tag="mcp_tool_result"):
    pass


class ToolResultBlock(Struct, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock] | None = None
    is_error: bool | None = None


Said = TextBlock | ThinkingBlock | RedactedBlock | ToolUseBlock
"""What a model says."""
Block = (
    TextBlock | ImageBlock | ThinkingBlock | RedactedBlock | ToolUseBlock | ToolResultBlock | DocumentBlock
    | SearchResultBlock | ServerToolUseBlock | WebSearchResultBlock | WebFetchResultBlock | CodeResultBlock
    | BashResultBlock | EditorResultBlock | ToolSearchResultBlock | McpToolUseBlock | McpToolResultBlock
)  # fmt: skip

_WRAPPED = msgspec.json.Decoder(dict[str, str])


def read_block(block: Block, around: Around) -> Iterator[Part]:
    """The part that a block is; none for those of tools that the provider runs, which nobody else understands."""
    if isinstance(block, TextBlock):
        yield Text(block.text)
    elif isinstance(block, ImageBlock):
        yield _image(block, around)
    elif isinstance(block, ThinkingBlock):
        yield Reasoning(block.thinking, block.signature)
    elif isinstance(block, RedactedBlock):
        yield Reasoning("", _REDACTED + block.data)
    elif isinstance(block, ToolUseBlock):
        yield around.call(block.id, block.name, read_input(block.input))
    elif isinstance(block, ToolResultBlock):
        yield ToolResult(block.tool_use_id, tuple(_result_content(block, around)), bool(block.is_error))
    elif isinstance(block, HeardElsewhere):
        yield Text(_name_of(block))


def _name_of(block: HeardElsewhere) -> str:
    """What stands in the trace for something that only an engine of this dialect can be shown."""
    kind = str(type(block).__struct_config__.tag).replace("_", " ")
    return f"[{kind}: {block.title}]" if block.title else f"[{kind}]"


def _image(block: ImageBlock, around: Around) -> Image:
    if block.source.type != "base64":
        raise WireError(f"images must come as base64, not as {block.source.type[:40]!r}")
    return around.image(block.source.data, block.source.media_type)


def _result_content(block: ToolResultBlock, around: Around) -> Iterator[Text | Image]:
    if isinstance(block.content, str):
        yield Text(block.content)
        return
    for part in block.content or ():
        if isinstance(part, TextBlock):
            yield Text(part.text)
        elif isinstance(part, ImageBlock):
            yield _image(part, around)
        else:
            yield Text(_name_of(part))


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
