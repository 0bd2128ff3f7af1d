"""Chat completions, the request: read by a server, written by a client.

A chat message has one slot for reasoning, one for text and one for tool calls, so an assistant message is written in
that order and its reasoning is joined; signatures and `is_error` have no slot. Each tool result is a message of its
own. Developer messages are system messages. Empty text makes no part in an assistant message. Fields that we do not
know (`name`, `strict`) are no part of a message, and reach an engine of this dialect as they were written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from rollwright.dialects.forms import Around, Group, Settings, read_element
from rollwright.dialects.images import Images, get_data_url
from rollwright.dialects.jsontext import dumps, read
from rollwright.dialects.requests import (
    check_no_list,
    read_outer,
    read_stop,
    split_heard,
    write_body,
    write_content,
    write_list,
)
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
    messages: list[Raw]
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


MessageIn = SystemIn | DeveloperIn | UserIn | AssistantIn | ToolIn
WHAT = "the chat completion request"
DECODER = msgspec.json.Decoder(RequestIn)
MESSAGE_DECODER: msgspec.json.Decoder[MessageIn] = msgspec.json.Decoder(MessageIn)
# `max_completion_tokens` is known and yet kept in `extra`: its presence says under which name the limit is passed on.
KNOWN = frozenset(RequestIn.__struct_fields__) - {"n", "max_completion_tokens"}


class ChatForm:
    name = "chat"
    field = "messages"
    what = WHAT

    def settings(self, outer: bytes) -> Settings:
        request = read(DECODER, outer, WHAT)
        check_no_list(request.messages, WHAT)
        if request.n not in (None, 1):
            raise WireError(f"n is {request.n}; one answer per request is served here")
        tools = request.tools or []
        extra, written = read_outer(outer, KNOWN, [tool.function is not None for tool in tools], WHAT)
        if request.return_token_ids and extra.get("logprobs") is True:
            del extra["logprobs"]
        return Settings(
            model=request.model,
            tools=tuple(_spec(tool.function) for tool in tools if tool.function is not None),
            sampling=_sampling(request),
            stream=bool(request.stream),
            return_tokens=bool(request.return_token_ids),
            extra=extra,
            written=written,
        )

    def groups(self, elements: Sequence[Raw], first: int, around: Around) -> Iterator[Group]:
        for index, element in enumerate(elements, first):
            yield Group(1, (_message(read_element(MESSAGE_DECODER, element, self, index), around),))


FORM = ChatForm()


def _sampling(request: RequestIn) -> Sampling:
    limit = request.max_completion_tokens
    return Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        max_tokens=request.max_tokens if limit is None else limit,
        seed=request.seed,
        stop=read_stop(request.stop),
    )


def _spec(function: FunctionSpec) -> ToolSpec:
    return ToolSpec(function.name, function.description or "", function.parameters or {})


def _message(message: MessageIn, around: Around) -> Message:
    if isinstance(message, AssistantIn):
        return Message("assistant", tuple(_assistant_parts(message, around)))
    content = _content(message.content, around)
    if isinstance(message, ToolIn):
        return Message("tool", (ToolResult(message.tool_call_id, content),))
    role: Role = "user" if isinstance(message, UserIn) else "system"
    return Message(role, content)


def _assistant_parts(message: AssistantIn, around: Around) -> Iterator[Part]:
    if reasoning := message.reasoning_content or message.reasoning:
        yield Reasoning(reasoning)
    for part in _content(message.content or "", around):
        if not isinstance(part, Text) or part.text:
            yield part
    if message.refusal:
        yield Text(message.refusal)
    for call in message.tool_calls or ():
        yield around.call(call.id, call.function.name, call.function.arguments)


def _content(content: Content, around: Around) -> tuple[Text | Image, ...]:
    if isinstance(content, str):
        return (Text(content),)
    return tuple(_part(part, around) for part in content)


def _part(part: TextPart | ImagePart | RefusalPart, around: Around) -> Text | Image:
    if isinstance(part, ImagePart):
        return around.image_at(part.image_url.url)
    return Text(part.text if isinstance(part, TextPart) else part.refusal)


def write_request(call: ModelCall, images: Images) -> bytes:
    def written(messages: Sequence[Message]) -> list[Any]:
        return [out for message in messages for out in _messages_out(message, images)]

    _, messages = write_list(call, FORM.name, 0, written, images)
    body = write_body(call, FORM.name, {"messages": messages}, _tool_out, _sampling_out(call))
    if call.stream:
        # Without this the answer's last event has no usage, and our books would say zero.
        options = body.get("stream_options")
        body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    if call.return_tokens:
        body["return_token_ids"] = body["logprobs"] = True
    return dumps(body)


def _sampling_out(call: ModelCall) -> dict[str, Any]:
    sampling = call.sampling
    limit_name = "max_completion_tokens" if "max_completion_tokens" in call.extra else "max_tokens"
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        limit_name: sampling.max_tokens,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
    }


def _tool_out(tool: ToolSpec) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = tool.parameters
    return {"type": "function", "function": function}


def _messages_out(message: Message, images: Images) -> Iterator[dict[str, Any]]:
    if message.role == "assistant":
        spoken = [part for part in message.parts if isinstance(part, Text | Image)]
        yield assistant_out(message, write_content(spoken, _part_out, images) if spoken else None)
        return
    results, content = split_heard(message)
    for result in results:
        told = write_content(result.content, _part_out, images)
        yield {"role": "tool", "tool_call_id": result.call_id, "content": told}
    if content is not None:
        yield {"role": message.role, "content": write_content(content, _part_out, images)}


def assistant_out(message: Message, content: str | list[dict[str, Any]] | None) -> dict[str, Any]:
    """What the model said. Only calls can stand without content, so None is an empty text where there are none."""
    calls = message.tool_calls
    out: dict[str, Any] = {"role": "assistant", "content": "" if content is None and not calls else content}
    if message.reasoning:
        out["reasoning_content"] = message.reasoning
    if calls:
        out["tool_calls"] = [_call_out(call) for call in calls]
    return out


def _call_out(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _part_out(part: Text | Image, images: Images) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    return {"type": "image_url", "image_url": {"url": get_data_url(images, part)}}
