"""Anthropic messages, the request: read by a server, written by a client.

Tool results are blocks of a user message there and messages of their own here: one per result. They are written into
one user message together with what the user says next, as the API wants the answers to parallel calls. The first
system message is the request's `system`. Fields that we do not know (`cache_control`) are no part of a message, and
reach an engine of this dialect as they were written; so do blocks of the provider's own tools. `seed` is no field of
this API: it is sent if it is set, so that it is refused aloud.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec
import orjson
from msgspec import Raw, Struct

from rollwright.dialects.forms import Around, Group, Settings, read_element
from rollwright.dialects.images import Images
from rollwright.dialects.jsontext import dumps, read
from rollwright.dialects.requests import check_no_list, read_outer, write_body, write_content, write_list
from rollwright.dialects.sources import source_of
from rollwright.wire import Message, ModelCall, Part, Sampling, Text, ToolResult, ToolSpec, WireError

from .blocks import (
    Block,
    HeardElsewhere,
    ImageBlock,
    RedactedBlock,
    SaidElsewhere,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    read_block,
    write_part,
)

DEFAULT_MAX_TOKENS = 8192
"""The API wants a limit; this one is sent where the call has none."""


class MessageIn(Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ToolSpecIn(Struct):
    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None

    @property
    def is_function(self) -> bool:
        return self.type in (None, "custom") and self.name is not None


class RequestIn(Struct):
    model: str
    messages: list[Raw]
    system: str | list[TextBlock] | None = None
    tools: list[ToolSpecIn] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop_sequences: list[str] | None = None
    seed: int | None = None
    stream: bool | None = None


_ALLOWED: dict[str, tuple[type[Struct], ...]] = {
    "user": (TextBlock, ImageBlock, ToolResultBlock, HeardElsewhere),
    "assistant": (TextBlock, ThinkingBlock, RedactedBlock, ToolUseBlock, SaidElsewhere),
    "system": (TextBlock,),
}
WHAT = "the messages request"
DECODER = msgspec.json.Decoder(RequestIn)
MESSAGE_DECODER = msgspec.json.Decoder(MessageIn)
KNOWN = frozenset(RequestIn.__struct_fields__)


class MessagesForm:
    name = "messages"
    field = "messages"
    what = WHAT

    def settings(self, outer: bytes) -> Settings:
        request = read(DECODER, outer, WHAT)
        check_no_list(request.messages, WHAT)
        tools = request.tools or []
        extra, written = read_outer(outer, KNOWN, [tool.is_function for tool in tools], WHAT)
        return Settings(
            model=request.model,
            opening=tuple(_system(request)),
            tools=tuple(_spec(tool) for tool in tools if tool.is_function),
            sampling=Sampling(
                temperature=request.temperature,
                top_p=request.top_p,
                max_tokens=request.max_tokens,
                seed=request.seed,
                stop=tuple(request.stop_sequences or ()),
            ),
            stream=bool(request.stream),
            extra=extra,
            written=written,
        )

    def groups(self, elements: Sequence[Raw], first: int, around: Around) -> Iterator[Group]:
        for index, element in enumerate(elements, first):
            yield Group(1, tuple(_messages(read_element(MESSAGE_DECODER, element, self, index), around)))


FORM = MessagesForm()


def _spec(tool: ToolSpecIn) -> ToolSpec:
    return ToolSpec(tool.name or "", tool.description or "", tool.input_schema or {})


def _system(request: RequestIn) -> Iterator[Message]:
    if isinstance(request.system, str):
        yield Message("system", (Text(request.system),))
    elif request.system is not None:
        yield Message("system", tuple(Text(block.text) for block in request.system))


def _messages(message: MessageIn, around: Around) -> Iterator[Message]:
    parts = _parts(message, around)
    if message.role == "assistant":
        yield Message("assistant", tuple(part for part in parts if part != Text("")))
    elif message.role == "system" or not parts:
        yield Message(message.role, parts)
    else:
        for is_result, run in groupby(parts, key=lambda part: isinstance(part, ToolResult)):
            if is_result:
                yield from (Message("tool", (result,)) for result in run)
            else:
                yield Message("user", tuple(run))


def _parts(message: MessageIn, around: Around) -> tuple[Part, ...]:
    if isinstance(message.content, str):
        return (Text(message.content),)
    for block in message.content:
        if not isinstance(block, _ALLOWED[message.role]):
            raise WireError(
                f"a message of the role {message.role!r} cannot hold a {type(block).__struct_config__.tag!r}"
            )
    return tuple(part for block in message.content for part in read_block(block, around))


def write_request(call: ModelCall, images: Images) -> bytes:
    return dumps(request_fields(call, images, _sampling_out(call.sampling)))


def request_fields(call: ModelCall, images: Images, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """A request, with what it says about sampling."""

    def written(messages: Sequence[Message]) -> list[Any]:
        return _turns(messages, images)

    begins_with_system = bool(call.messages) and call.messages[0].role == "system"
    opening, turns = write_list(call, FORM.name, int(begins_with_system), written, images)
    conversation: dict[str, Any] = {"system": _system_out(call, images)} if opening else {}
    conversation["messages"] = turns
    return write_body(call, FORM.name, conversation, _tool_out, sampling)


def _system_out(call: ModelCall, images: Images) -> Any:
    source = source_of(call, FORM.name)
    if source is not None and source.opens(call.messages) > 0:
        return orjson.Fragment(source.settings.written["system"])
    return write_content(call.messages[0].parts, write_part, images)


def _turns(messages: Sequence[Message], images: Images) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] | None = None
    for message in messages:
        if message.role == "tool":
            if answers is None:
                answers = []
                turns.append({"role": "user", "content": answers})
            answers += [write_part(part, images) for part in _results(message)]
        elif message.role == "user" and answers is not None and message.parts:
            answers += [write_part(part, images) for part in message.parts]
            answers = None
        else:
            turns.append({"role": message.role, "content": write_content(message.parts, write_part, images)})
            answers = None
    return turns


def _results(message: Message) -> tuple[Part, ...]:
    if not all(isinstance(part, ToolResult) for part in message.parts):
        raise WireError("a tool message holds tool results and nothing else")
    return message.parts


def _tool_out(tool: ToolSpec) -> dict[str, Any]:
    out: dict[str, Any] = {"name": tool.name, "input_schema": tool.parameters or {"type": "object"}}
    if tool.description:
        out["description"] = tool.description
    return out


def _sampling_out(sampling: Sampling) -> dict[str, Any]:
    return {
        "max_tokens": DEFAULT_MAX_TOKENS if sampling.max_tokens is None else sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "stop_sequences": list(sampling.stop) or None,
        "seed": sampling.seed,
    }
