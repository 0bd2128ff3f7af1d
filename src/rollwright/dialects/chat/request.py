"""Chat completions, the request: read by a server, written by a client.

A chat message has one slot for reasoning, one for text and one for tool calls, so an assistant message is written in
that order and its reasoning is joined; signatures and `is_error` have no slot. Each tool result is a message of its
own. Developer messages are system messages. Empty text makes no part in an assistant message. Fields of messages and
tools that we do not know (`name`, `strict`) are not kept; those of the request are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from rollwright.dialects.images import Images, get_data_url, put_data_url
from rollwright.dialects.jsontext import dumps, loads, read, unknown_fields
from rollwright.wire import (
    Image,
    Message,
    ModelCall,
    Part,
    Reasoning,
    Role,
    Sampling,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    WireError,
)


class Url(Struct):
    url: str


class TextPart(Struct, tag_field="type", tag="text"):
    text: str


class ImagePart(Struct, tag_field="type", tag="image_url"):
    image_url: Url


class RefusalPart(Struct, tag_field="type", tag="refusal"):
    refusal: str


Content = str | list[TextPart | ImagePart | RefusalPart]


class Function(Struct):
    name: str
    arguments: str


class Call(Struct):
    id: str
    function: Function


class SystemIn(Struct, tag_field="role", tag="system"):
    content: Content


class DeveloperIn(Struct, tag_field="role", tag="developer"):
    content: Content


class UserIn(Struct, tag_field="role", tag="user"):
    content: Content


class AssistantIn(Struct, tag_field="role", tag="assistant"):
    content: Content | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Call] | None = None


class ToolIn(Struct, tag_field="role", tag="tool"):
    tool_call_id: str
    content: Content


class FunctionSpec(Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolSpecIn(Struct):
    type: str
    function: FunctionSpec | None = None


class RequestIn(Struct):
    model: str
    messages: list[SystemIn | DeveloperIn | UserIn | AssistantIn | ToolIn]
    tools: list[ToolSpecIn] | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    return_token_ids: bool | None = None
    n: int | None = None


WHAT = "the chat completion request"
DECODER = msgspec.json.Decoder(RequestIn)
# `max_completion_tokens` is known and yet kept in `extra`: its presence says under which name the limit is passed on.
KNOWN = frozenset(RequestIn.__struct_fields__) - {"n", "max_completion_tokens"}


def read_request(body: bytes, images: Images) -> ModelCall:
    request = read(DECODER, body, WHAT)
    if request.n not in (None, 1):
        raise WireError(f"n is {request.n}; one answer per request is served here")
    extra = unknown_fields(body, KNOWN, WHAT)
    if request.return_token_ids and extra.get("logprobs") is True:
        del extra["logprobs"]
    tools = request.tools or []
    if any(tool.function is None for tool in tools):
        all_tools = loads(body, WHAT)["tools"]
        extra["tools"] = [raw for raw, tool in zip(all_tools, tools, strict=True) if tool.function is None]
    return ModelCall(
        model=request.model,
        messages=tuple(_message(message, images) for message in request.messages),
        tools=tuple(_spec(tool.function) for tool in tools if tool.function is not None),
        sampling=_sampling(request),
        stream=bool(request.stream),
        return_tokens=bool(request.return_token_ids),
        extra=extra,
    )


def _sampling(request: RequestIn) -> Sampling:
    limit = request.max_completion_tokens
    stop = request.stop or []
    return Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        max_tokens=request.max_tokens if limit is None else limit,
        seed=request.seed,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
    )


def _spec(function: FunctionSpec) -> ToolSpec:
    return ToolSpec(function.name, function.description or "", function.parameters or {})


def _message(message: SystemIn | DeveloperIn | UserIn | AssistantIn | ToolIn, images: Images) -> Message:
    if isinstance(message, AssistantIn):
        return Message("assistant", tuple(_assistant_parts(message, images)))
    content = _content(message.content, images)
    if isinstance(message, ToolIn):
        return Message("tool", (ToolResult(message.tool_call_id, content),))
    role: Role = "user" if isinstance(message, UserIn) else "system"
    return Message(role, content)


def _assistant_parts(message: AssistantIn, images: Images) -> Iterator[Part]:
    if reasoning := message.reasoning_content or message.reasoning:
        yield Reasoning(reasoning)
    for part in _content(message.content or "", images):
        if not isinstance(part, Text) or part.text:
            yield part
    if message.refusal:
        yield Text(message.refusal)
    for call in message.tool_calls or ():
        yield ToolCall(call.id, call.function.name, call.function.arguments)


def _content(content: Content, images: Images) -> tuple[Text | Image, ...]:
    if isinstance(content, str):
        return (Text(content),)
    return tuple(_part(part, images) for part in content)


def _part(part: TextPart | ImagePart | RefusalPart, images: Images) -> Text | Image:
    if isinstance(part, ImagePart):
        return put_data_url(images, part.image_url.url)
    return Text(part.text if isinstance(part, TextPart) else part.refusal)


def write_request(call: ModelCall, images: Images) -> bytes:
    body = {name: value for name, value in call.extra.items() if name != "tools"}
    body["model"] = call.model
    body["messages"] = [out for message in call.messages for out in _messages_out(message, images)]
    tools = [*(_tool_out(tool) for tool in call.tools), *call.extra.get("tools", ())]
    if tools:
        body["tools"] = tools
    _write_sampling(body, call.sampling)
    if call.stream:
        body["stream"] = True
        # Without this the answer's last event has no usage, and our books would say zero.
        options = body.get("stream_options")
        body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    if call.return_tokens:
        body["return_token_ids"] = body["logprobs"] = True
    return dumps(body)


def _write_sampling(body: dict[str, Any], sampling: Sampling) -> None:
    limit_name = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    fields = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        limit_name: sampling.max_tokens,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
    }
    body.update((name, value) for name, value in fields.items() if value is not None)


def _tool_out(tool: ToolSpec) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = tool.parameters
    return {"type": "function", "function": function}


def _messages_out(message: Message, images: Images) -> Iterator[dict[str, Any]]:
    if message.role == "assistant":
        yield assistant_out(message, images)
        return
    content: list[Text | Image] = []
    for part in message.parts:
        if isinstance(part, ToolResult):
            yield {"role": "tool", "tool_call_id": part.call_id, "content": _content_out(part.content, images)}
        elif isinstance(part, Text | Image):
            content.append(part)
        else:
            raise WireError(f"a {message.role} message cannot hold a {type(part).__name__}")
    if message.role == "tool":
        if content:
            raise WireError("a tool message holds tool results and nothing else")
    elif content or not message.parts:
        yield {"role": message.role, "content": _content_out(tuple(content), images)}


def assistant_out(message: Message, images: Images) -> dict[str, Any]:
    spoken = tuple(part for part in message.parts if isinstance(part, Text | Image))
    calls = message.tool_calls
    out: dict[str, Any] = {"role": "assistant"}
    out["content"] = _content_out(spoken, images) if spoken else (None if calls else "")
    if message.reasoning:
        out["reasoning_content"] = message.reasoning
    if calls:
        out["tool_calls"] = [call_out(call) for call in calls]
    return out


def call_out(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _content_out(content: tuple[Text | Image, ...], images: Images) -> str | list[dict[str, Any]]:
    if len(content) == 1 and isinstance(content[0], Text):
        return content[0].text
    return [_part_out(part, images) for part in content]


def _part_out(part: Text | Image, images: Images) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    return {"type": "image_url", "image_url": {"url": get_data_url(images, part)}}
