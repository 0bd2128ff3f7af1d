"""Anthropic messages, the whole reply: read by a client, written by a server. It has no slot for token ids."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from rollwright.dialects.borders import raise_engine_error
from rollwright.dialects.jsontext import dumps, new_id, read
from rollwright.wire import End, Finish, ModelCall, ModelReply, Usage, WireError, reply_of

from .blocks import Said, said_events, write_reply_content

FINISHES = {
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "pause_turn": Finish.STOP,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "tool_use": Finish.TOOL_CALLS,
    "refusal": Finish.REFUSAL,
}
FINISH_WORDS = {
    Finish.STOP: "end_turn",
    Finish.LENGTH: "max_tokens",
    Finish.TOOL_CALLS: "tool_use",
    Finish.REFUSAL: "refusal",
}


class UsageIn(Struct):
    input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens: int | None = None


class ReplyIn(Struct):
    content: list[Said] | None = None
    model: str | None = None
    stop_reason: str | None = None
    usage: UsageIn | None = None
    policy_version: int | None = None
    error: Any = None


WHAT = "the engine's message"
DECODER = msgspec.json.Decoder(ReplyIn)


def read_reply(body: bytes) -> ModelReply:
    reply = read(DECODER, body, WHAT)
    if reply.content is None:
        if reply.error is not None:
            raise_engine_error(reply.error)
        raise WireError(f"{WHAT} holds no content")
    end = End(
        finish=read_finish(reply.stop_reason),
        usage=read_usage(reply.usage or UsageIn()),
        policy_version=reply.policy_version or 0,
        model=reply.model or "",
    )
    return reply_of([*said_events(reply.content), end])


def read_finish(word: str | None) -> Finish:
    """Words that we do not know mean an ordinary stop; no word means that it did not stop."""
    if word is None:
        raise WireError(f"{WHAT} did not finish: it has no stop_reason")
    return FINISHES.get(word, Finish.STOP)


def read_usage(usage: UsageIn) -> Usage:
    """Tokens that came from a cache were part of the prompt."""
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return Usage((usage.input_tokens or 0) + cached, usage.output_tokens or 0)


def usage_out(usage: Usage) -> dict[str, int]:
    return {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}


def message_out(model: str, content: list[dict[str, Any]], stop_reason: str | None, usage: Usage) -> dict[str, Any]:
    return {
        "id": new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage_out(usage),
    }


def write_reply(reply: ModelReply, call: ModelCall) -> bytes:
    content = write_reply_content(reply.message)
    body = message_out(reply.model or call.model, content, FINISH_WORDS[reply.finish], reply.usage)
    if reply.policy_version:
        body["policy_version"] = reply.policy_version
    return dumps(body)


def error_out(message: str, kind: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def write_token_count(tokens: int) -> bytes:
    """The answer of `/v1/messages/count_tokens`, whose request is read like any other."""
    return dumps({"input_tokens": tokens})
