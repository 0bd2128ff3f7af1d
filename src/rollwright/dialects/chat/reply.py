"""Chat completions, the whole reply: read by a client, written by a server."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from rollwright.dialects.borders import raise_engine_error
from rollwright.dialects.jsontext import dumps, new_id, now_s, read
from rollwright.wire import Finish, Message, ModelCall, ModelReply, Part, Reasoning, Text, ToolCall, Usage, WireError

from .request import assistant_out
from .tokens import ChoiceTokensIn, TokenGatherer, TokenId, choice_fields, prompt_fields

FINISHES = {
    "stop": Finish.STOP,
    "length": Finish.LENGTH,
    "tool_calls": Finish.TOOL_CALLS,
    "function_call": Finish.TOOL_CALLS,
    "content_filter": Finish.REFUSAL,
}
FINISH_WORDS = {
    Finish.STOP: "stop",
    Finish.LENGTH: "length",
    Finish.TOOL_CALLS: "tool_calls",
    Finish.REFUSAL: "content_filter",
}


class FunctionIn(Struct):
    name: str
    arguments: str | None = None


class CallIn(Struct):
    function: FunctionIn
    id: str | None = None


class SaidIn(Struct):
    """What the model said, whole or a piece of it."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


class MessageIn(SaidIn):
    tool_calls: list[CallIn] | None = None


class ChoiceIn(ChoiceTokensIn, kw_only=True):
    message: MessageIn
    finish_reason: str | None = None


class UsageIn(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class AnswerIn(Struct):
    """What stands around the choices, in a whole reply or in a chunk."""

    model: str | None = None
    usage: UsageIn | None = None
    prompt_token_ids: list[TokenId] | None = None
    policy_version: int | None = None
    error: Any = None


class ReplyIn(AnswerIn):
    choices: list[ChoiceIn] | None = None


WHAT = "the engine's chat completion"
DECODER = msgspec.json.Decoder(ReplyIn)


def read_reply(body: bytes) -> ModelReply:
    reply = read(DECODER, body, WHAT)
    if not reply.choices:
        # Some proxies answer 200 and tell the failure inside.
        if reply.error is not None:
            raise_engine_error(reply.error)
        raise WireError(f"{WHAT} holds no choices")
    choice = reply.choices[0]
    gatherer = TokenGatherer()
    gatherer.prompt(reply.prompt_token_ids)
    gatherer.completion(choice)
    return ModelReply(
        message=Message("assistant", _parts(choice.message)),
        finish=read_finish(choice.finish_reason, bool(choice.message.refusal)),
        usage=read_usage(reply.usage),
        tokens=gatherer.tokens(),
        policy_version=reply.policy_version or 0,
        model=reply.model or "",
    )


def _parts(message: MessageIn) -> tuple[Part, ...]:
    parts: list[Part] = []
    if reasoning := message.reasoning_content or message.reasoning:
        parts.append(Reasoning(reasoning))
    if text := (message.content or "") + (message.refusal or ""):
        parts.append(Text(text))
    calls = message.tool_calls or ()
    return (*parts, *(ToolCall(call.id or "", call.function.name, call.function.arguments or "") for call in calls))


def read_finish(word: str | None, refused: bool) -> Finish:
    """Words that we do not know mean an ordinary stop; the words of a failure do not."""
    if word is None or word in ("error", "abort"):
        raise WireError(f"{WHAT} did not finish: its finish_reason is {word!r}")
    return Finish.REFUSAL if refused else FINISHES.get(word, Finish.STOP)


def read_usage(usage: UsageIn | None) -> Usage:
    return Usage(usage.prompt_tokens or 0, usage.completion_tokens or 0) if usage else Usage()


def usage_out(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }


def write_reply(reply: ModelReply, call: ModelCall) -> bytes:
    choice: dict[str, Any] = {
        "index": 0,
        "message": assistant_out(reply.message, reply.message.text or None),
        "finish_reason": FINISH_WORDS[reply.finish],
        "logprobs": None,
    }
    body: dict[str, Any] = {
        "id": new_id("chatcmpl-"),
        "object": "chat.completion",
        "created": now_s(),
        "model": reply.model or call.model,
        "choices": [choice],
        "usage": usage_out(reply.usage),
    }
    if reply.policy_version:
        body["policy_version"] = reply.policy_version
    if call.return_tokens and reply.tokens is not None:
        choice.update(choice_fields(reply.tokens))
        body.update(prompt_fields(reply.tokens))
    return dumps(body)
