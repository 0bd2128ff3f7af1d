"""The Responses API, the whole reply: read by a client, written by a server. It has no slot for token ids and no word
for "stopped to call tools": that is what an answer with function calls did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from rollwright.dialects.borders import raise_engine_error
from rollwright.dialects.forms import ToolWay
from rollwright.dialects.jsontext import dumps, new_id, now_s, read
from rollwright.wire import (
    Delta,
    End,
    Finish,
    ModelCall,
    ModelReply,
    Part,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
    WireError,
    reply_of,
)

from .calls import PLAIN, call_out, ways_in
from .items import TEXT_TYPES, ItemIn, read_call, reasoning_text
from .request import tool_out

_INCOMPLETE = {"content_filter": Finish.REFUSAL}
_INCOMPLETE_WORDS = {Finish.LENGTH: "max_output_tokens", Finish.REFUSAL: "content_filter"}


class UsageIn(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None


class IncompleteIn(Struct):
    reason: str | None = None


class ResponseIn(Struct):
    output: list[ItemIn] | None = None
    status: str | None = None
    model: str | None = None
    incomplete_details: IncompleteIn | None = None
    usage: UsageIn | None = None
    policy_version: int | None = None
    error: Any = None


WHAT = "the engine's response"
DECODER = msgspec.json.Decoder(ResponseIn)


def read_reply(body: bytes) -> ModelReply:
    response = read(DECODER, body, WHAT)
    if response.output is None and response.error is None:
        raise WireError(f"{WHAT} holds no output")
    said = list(_said_events(response.output or ()))
    return reply_of([*said, read_end(response, said, _refused(response.output or ()))])


def read_end(response: ResponseIn, said: Sequence[Delta], refused: bool) -> End:
    usage = response.usage or UsageIn()
    return End(
        finish=_finish(response, any(isinstance(event, ToolCallDelta) for event in said), refused),
        usage=Usage(usage.input_tokens or 0, usage.output_tokens or 0),
        policy_version=response.policy_version or 0,
        model=response.model or "",
    )


def _finish(response: ResponseIn, called: bool, refused: bool) -> Finish:
    if response.status == "failed" or response.error is not None:
        raise_engine_error(response.error)
    if response.status == "incomplete":
        reason = response.incomplete_details.reason if response.incomplete_details else None
        return _INCOMPLETE.get(reason or "", Finish.LENGTH)
    if response.status not in ("completed", None):
        raise WireError(f"{WHAT} did not finish: its status is {response.status!r}")
    if refused:
        return Finish.REFUSAL
    return Finish.TOOL_CALLS if called else Finish.STOP


def _refused(items: Sequence[ItemIn]) -> bool:
    return any(part.type == "refusal" for item in items for part in item.content or () if not isinstance(part, str))


def _said_events(items: Sequence[ItemIn]) -> Iterator[Delta]:
    """The items of a whole reply as the events of a stream, so that both give the same reply."""
    tools = 0
    for item in items:
        if item.is_call:
            call = read_call(item)
            yield ToolCallDelta(tools, call.arguments, call.id, call.name)
            tools += 1
        elif item.type == "reasoning":
            yield ReasoningDelta(reasoning_text(item), item.encrypted_content or "")
        elif item.type == "message":
            if text := message_text(item):
                yield TextDelta(text)
        else:
            raise WireError(f"output items of type {item.type[:60]!r} are not known here")


def message_text(item: ItemIn) -> str:
    if isinstance(item.content, str):
        return item.content
    parts = item.content or ()
    return "".join(part.text if part.type in TEXT_TYPES else part.refusal for part in parts)


def write_reply(reply: ModelReply, call: ModelCall) -> bytes:
    said = [part for part in reply.message.parts if isinstance(part, Text | Reasoning | ToolCall)]
    ways = ways_in(call)
    items = [item_out(part, ways) for part in said]
    return dumps(
        finished(response_head(call), items, End(reply.finish, reply.usage, None, reply.policy_version, reply.model))
    )


def response_head(call: ModelCall) -> dict[str, Any]:
    """A response that has just begun."""
    return {
        "id": new_id("resp_"),
        "object": "response",
        "created_at": now_s(),
        "status": "in_progress",
        "model": call.model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": call.sampling.temperature,
        "tool_choice": "auto",
        "tools": [tool_out(tool) for tool in call.tools],
        "top_p": call.sampling.top_p,
        "usage": None,
    }


def finished(head: dict[str, Any], items: list[dict[str, Any]], end: End) -> dict[str, Any]:
    reason = _INCOMPLETE_WORDS.get(end.finish)
    body = {
        **head,
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "model": end.model or head["model"],
        "output": items,
        "usage": _usage_out(end.usage),
    }
    if end.policy_version:
        body["policy_version"] = end.policy_version
    return body


def _usage_out(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }


def item_out(part: Part, ways: Mapping[str, ToolWay], id: str = "", status: str = "completed") -> dict[str, Any]:
    """What the model said, as an output item. `ways` are those of tools that are no plain functions."""
    if isinstance(part, ToolCall):
        return call_out(part, ways.get(part.name, PLAIN), id, status)
    if isinstance(part, Reasoning):
        return {
            "type": "reasoning",
            "id": id or new_id("rs_"),
            "summary": [],
            "content": [{"type": "reasoning_text", "text": part.text}],
            "encrypted_content": part.signature or None,
            "status": status,
        }
    if isinstance(part, Text):
        content = [text_out(part.text)]
        return {
            "type": "message",
            "id": id or new_id("msg_"),
            "role": "assistant",
            "content": content,
            "status": status,
        }
    raise WireError(f"a model does not say a {type(part).__name__}")


def text_out(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
