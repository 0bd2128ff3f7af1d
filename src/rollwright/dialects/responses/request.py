"""The Responses API, the request: read by a server, written by a client.

A first system message of one text is `instructions`. `stop` and `seed` are no fields of this API: they are sent if they
are set, so that they are refused aloud, not forgotten. Nothing is stored between requests, so a request that refers to
an earlier one is refused. Fields that we do not know are no part of a message, and reach an engine of this dialect as
they were written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from rollwright.dialects.forms import Around, Group, Settings, read_element
from rollwright.dialects.images import Images
from rollwright.dialects.jsontext import dumps, read
from rollwright.dialects.requests import check_no_list, read_outer, read_stop, write_body, write_list
from rollwright.wire import Message, ModelCall, Sampling, Text, ToolSpec, WireError

from .calls import ToolSpecIn, read_tools, ways_in
from .items import ItemIn, read_items, write_items


class RequestIn(Struct):
    model: str
    input: str | list[Raw]
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
ITEM_DECODER = msgspec.json.Decoder(ItemIn)
KNOWN = frozenset(RequestIn.__struct_fields__)


class ResponsesForm:
    name = "responses"
    field = "input"
    what = WHAT

    def settings(self, outer: bytes) -> Settings:
        request = read(DECODER, outer, WHAT)
        check_no_list(request.input, WHAT)
        if request.previous_response_id is not None:
            raise WireError("previous_response_id is not kept here; send the whole conversation as input")
        tools = request.tools or []
        extra, written = read_outer(outer, KNOWN, [tool.is_ours for tool in tools], WHAT)
        specs, ways = read_tools(tools)
        return Settings(
            model=request.model,
            opening=tuple(_opening(request)),
            tools=specs,
            sampling=Sampling(
                temperature=request.temperature,
                top_p=request.top_p,
                max_tokens=request.max_output_tokens,
                seed=request.seed,
                stop=read_stop(request.stop),
            ),
            stream=bool(request.stream),
            extra=extra,
            written=written,
            tool_ways=ways,
        )

    def groups(self, elements: Sequence[Raw], first: int, around: Around) -> Iterator[Group]:
        return read_items(_Items(elements, first, self), around)


class _Items(Sequence[ItemIn]):
    """Items that are read one after the other, when they are asked for; the last one is remembered."""

    def __init__(self, elements: Sequence[Raw], first: int, form: ResponsesForm) -> None:
        self._elements = elements
        self._first = first
        self._form = form
        self._last = -1

    def __len__(self) -> int:
        return len(self._elements)

    def __getitem__(self, index: Any) -> Any:
        if index != self._last:
            self._item = read_element(ITEM_DECODER, self._elements[index], self._form, self._first + index)
            self._last = index
        return self._item


FORM = ResponsesForm()


def _opening(request: RequestIn) -> Iterator[Message]:
    if request.instructions is not None:
        yield Message("system", (Text(request.instructions),))
    if isinstance(request.input, str):
        yield Message("user", (Text(request.input),))


def write_request(call: ModelCall, images: Images) -> bytes:
    ways = ways_in(call)

    def written(messages: Sequence[Message]) -> list[Any]:
        return [item for message in messages for item in write_items(message, images, ways)]

    instructions = _instructions(call.messages)
    opening, items = write_list(call, FORM.name, int(instructions is not None), written, images)
    conversation: dict[str, Any] = {"instructions": instructions} if opening else {}
    conversation["input"] = items
    return dumps(write_body(call, FORM.name, conversation, tool_out, _sampling_out(call.sampling)))


def _instructions(messages: Sequence[Message]) -> str | None:
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
