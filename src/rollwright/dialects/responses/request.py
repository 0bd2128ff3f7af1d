"""The Responses API, the request: read by a server, written by a client.

A first system message of one text is `instructions`. `stop` and `seed` are no fields of this API: they are sent if they
are set, so that they are refused aloud, not forgotten. Nothing is stored between requests, so a request that refers to
an earlier one is refused. Fields of items and tools that we do not know are not kept; those of the request are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from rollwright.dialects.images import Images
from rollwright.dialects.jsontext import dumps, read
from rollwright.dialects.requests import read_extra, read_stop, write_body
from rollwright.wire import Message, ModelCall, Sampling, Text, ToolSpec, WireError

from .items import ItemIn, read_items, write_items


class ToolSpecIn(Struct):
    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None


class RequestIn(Struct):
    model: str
    input: str | list[ItemIn]
    instructions: str | None = None
    tools: list[ToolSpecIn] | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    previous_response_id: str | None = None


WHAT = "the responses request"
DECODER = msgspec.json.Decoder(RequestIn)
KNOWN = frozenset(RequestIn.__struct_fields__)


def read_request(body: bytes, images: Images) -> ModelCall:
    request = read(DECODER, body, WHAT)
    if request.previous_response_id is not None:
        raise WireError("previous_response_id is not kept here; send the whole conversation as input")
    tools = request.tools or []
    return ModelCall(
        model=request.model,
        messages=tuple(_messages(request, images)),
        tools=tuple(_spec(tool) for tool in tools if tool.type == "function"),
        sampling=Sampling(
            temperature=request.temperature,
            top_p=request.top_p,
            max_tokens=request.max_output_tokens,
            seed=request.seed,
            stop=read_stop(request.stop),
        ),
        stream=bool(request.stream),
        extra=read_extra(body, KNOWN, [tool.type == "function" for tool in tools], WHAT),
    )


def _messages(request: RequestIn, images: Images) -> Iterator[Message]:
    if request.instructions is not None:
        yield Message("system", (Text(request.instructions),))
    if isinstance(request.input, str):
        yield Message("user", (Text(request.input),))
    else:
        yield from read_items(request.input, images)


def _spec(tool: ToolSpecIn) -> ToolSpec:
    if not tool.name:
        raise WireError("a function tool has no name")
    return ToolSpec(tool.name, tool.description or "", tool.parameters or {})


def write_request(call: ModelCall, images: Images) -> bytes:
    messages = list(call.messages)
    conversation: dict[str, Any] = {}
    if (instructions := _instructions(messages)) is not None:
        conversation["instructions"] = instructions
        del messages[0]
    conversation["input"] = [item for message in messages for item in write_items(message, images)]
    return dumps(write_body(call, conversation, tool_out, _sampling_out(call.sampling)))


def _instructions(messages: list[Message]) -> str | None:
    if messages and messages[0].role == "system":
        parts = messages[0].parts
        if len(parts) == 1 and isinstance(parts[0], Text):
            return parts[0].text
    return None


def tool_out(tool: ToolSpec) -> dict[str, Any]:
    # Strict mode is the default of this API and rewrites schemas; a tool is shown as its author wrote it.
    fields = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", **fields, "strict": False}


def _sampling_out(sampling: Sampling) -> dict[str, Any]:
    return {
        "max_output_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
    }
