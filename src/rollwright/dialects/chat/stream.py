"""Chat completions, the stream. Its end is `[DONE]`: a stream that stops before it was cut, finish reason or not,
because usage and tokens may come after the finish reason."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from rollwright.dialects.borders import openai_error, raise_engine_error
from rollwright.dialects.jsontext import dumps, new_id, now_s, read, string
from rollwright.dialects.sse import is_one_event, sse
from rollwright.dialects.streaming import SseStreamReader
from rollwright.wire import End, Event, Finish, ModelCall, ReasoningDelta, TextDelta, ToolCallDelta, Usage, WireError

from .reply import FINISH_WORDS, AnswerIn, SaidIn, read_finish, read_usage, usage_out
from .template import Template, template_of
from .tokens import ChoiceTokensIn, TokenGatherer, choice_fields, prompt_fields


class FunctionIn(Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class CallIn(Struct):
    index: int | None = None
    id: str | None = None
    function: FunctionIn = FunctionIn()


class DeltaIn(SaidIn):
    tool_calls: list[CallIn] | None = None


class ChoiceIn(ChoiceTokensIn):
    index: int = 0
    delta: DeltaIn | None = None
    finish_reason: str | None = None


class ChunkIn(AnswerIn):
    choices: list[ChoiceIn] | None = None


WHAT = "a chunk of the engine's stream"
DECODER = msgspec.json.Decoder(ChunkIn)
DONE = b"[DONE]"
_AFTER_TEXT = b'},"finish_reason":null}]}\n\n'
_DONE_BYTES = 64
"""No payload that is longer is the end, whatever space is around it."""


class ChatStreamReader(SseStreamReader):
    def __init__(self) -> None:
        super().__init__()
        self._gatherer = TokenGatherer()
        self._finish: Finish | None = None
        self._refused = False
        self._usage = Usage()
        self._model = ""
        self._policy_version = 0
        self._tools: dict[str, int] = {}
        """Index by id, for engines that send no index."""
        self._last_tool = -1
        self._template: Template | None = None
        """The last piece that carried text and nothing else."""
        self._plain = False
        """The payload that was read last told nothing that adds up."""

    def feed(self, chunk: bytes) -> list[Event]:
        template = self._template
        if template is not None and not self._sse.held_bytes:
            text = template.text(chunk)
            if text:
                return [TextDelta(text)]
        whole = not self._sse.held_bytes and is_one_event(chunk)
        events = super().feed(chunk)
        if whole and self._plain and not self._ended and len(events) == 1 and isinstance(events[0], TextDelta):
            self._template = template_of(chunk, events[0].text)
        return events

    def _read(self, payload: bytes, events: list[Event]) -> None:
        if len(payload) < _DONE_BYTES and payload.strip() == DONE:
            events.append(self._end())
        else:
            self._read_chunk(read(DECODER, payload, WHAT), events)

    def _end(self) -> End:
        if self._finish is None:
            raise WireError("the stream ended without a finish_reason")
        self._ended, self._template = True, None
        return End(self._finish, self._usage, self._gatherer.tokens(), self._policy_version, self._model)

    def _read_chunk(self, chunk: ChunkIn, events: list[Event]) -> None:
        if chunk.error is not None:
            raise_engine_error(chunk.error)
        self._plain = chunk.prompt_token_ids is None
        self._model = chunk.model or self._model
        self._policy_version = chunk.policy_version or self._policy_version
        if chunk.prompt_token_ids is not None:
            self._gatherer.prompt(chunk.prompt_token_ids)
        if chunk.usage is not None:
            self._usage = read_usage(chunk.usage)
        for choice in chunk.choices or ():
            if choice.index == 0:
                self._read_choice(choice, events)

    def _read_choice(self, choice: ChoiceIn, events: list[Event]) -> None:
        if choice.delta is not None:
            self._read_delta(choice.delta, events)
        if choice.token_ids is not None or choice.logprobs is not None or choice.routed_experts is not None:
            self._gatherer.completion(choice)
            self._plain = False
        if choice.finish_reason is not None:
            self._finish = read_finish(choice.finish_reason, self._refused)

    def _read_delta(self, delta: DeltaIn, events: list[Event]) -> None:
        if reasoning := delta.reasoning_content or delta.reasoning:
            events.append(ReasoningDelta(reasoning))
        if delta.content:
            events.append(TextDelta(delta.content))
        if delta.refusal:
            self._refused = True
            events.append(TextDelta(delta.refusal))
        if delta.tool_calls:
            events.extend(self._tool(call) for call in delta.tool_calls)

    def _tool(self, call: CallIn) -> ToolCallDelta:
        index = self._last_tool if call.index is None else call.index
        if call.index is None and call.id:
            index = self._tools.setdefault(call.id, len(self._tools))
        if index < 0:
            raise WireError("a tool call began without an id or an index")
        self._last_tool = index
        return ToolCallDelta(index, call.function.arguments or "", call.id or "", call.function.name or "")


class ChatStreamWriter:
    """Text is the hot path: what stands around it is built once."""

    def __init__(self, call: ModelCall) -> None:
        self._call = call
        self._head = {
            "id": new_id("chatcmpl-"),
            "object": "chat.completion.chunk",
            "created": now_s(),
            "model": call.model,
        }
        before_delta = dumps(self._head)[:-1] + b',"choices":[{"index":0,"delta":'
        self._before_delta = b"data: " + before_delta
        self._before_text = self._before_delta + b'{"content":'
        self._before_reasoning = self._before_delta + b'{"reasoning_content":'

    def open(self) -> bytes:
        return self._delta({"role": "assistant", "content": ""})

    def write(self, event: Event) -> bytes:
        if isinstance(event, TextDelta):
            return self._before_text + string(event.text) + _AFTER_TEXT
        if isinstance(event, ReasoningDelta):
            return b'%b%b},"finish_reason":null}]}\n\n' % (self._before_reasoning, string(event.text))
        if isinstance(event, ToolCallDelta):
            return self._delta({"tool_calls": [_tool_out(event)]})
        return self._end(event)

    def error(self, message: str) -> bytes:
        return sse(dumps(openai_error(message, "api_error")))

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return b'%b%b,"finish_reason":null}]}\n\n' % (self._before_delta, dumps(delta))

    def _end(self, end: End) -> bytes:
        head = {**self._head, "model": end.model or self._call.model}
        choice: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": FINISH_WORDS[end.finish], "logprobs": None}
        last: dict[str, Any] = {**head, "choices": [choice]}
        if end.policy_version:
            last["policy_version"] = end.policy_version
        if self._call.return_tokens and end.tokens is not None:
            choice.update(choice_fields(end.tokens))
            last.update(prompt_fields(end.tokens))
        tail = sse(dumps(last))
        if self._wants_usage():
            tail += sse(dumps({**head, "choices": [], "usage": usage_out(end.usage)}))
        return tail + sse(DONE)

    def _wants_usage(self) -> bool:
        """A client that did not ask for usage may not expect a chunk without choices."""
        options = self._call.extra.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True


def _tool_out(event: ToolCallDelta) -> dict[str, Any]:
    out: dict[str, Any] = {"index": event.index, "function": {"arguments": event.arguments}}
    if event.id or event.name:
        out.update(id=event.id, type="function", function={"name": event.name, "arguments": event.arguments})
    return out
