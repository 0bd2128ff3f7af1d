"""Anthropic messages, the stream: blocks one after another, each opened, filled and closed. Its end is `message_stop`.

The model's name is told when the stream opens, so it is the one that was asked for."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from rollwright.dialects.borders import raise_engine_error
from rollwright.dialects.jsontext import dumps, read, string
from rollwright.dialects.sse import sse
from rollwright.dialects.streaming import SseStreamReader
from rollwright.dialects.toolorder import ToolOrder
from rollwright.wire import End, Event, ModelCall, ReasoningDelta, TextDelta, ToolCallDelta, Usage, WireError

from .blocks import read_input, redacted_data, redacted_delta
from .reply import FINISH_WORDS, UsageIn, error_out, message_out, read_finish, read_usage, usage_out


class StartIn(Struct):
    model: str | None = None
    usage: UsageIn | None = None


class BlockIn(Struct):
    type: str
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""
    id: str = ""
    name: str = ""
    input: Raw = Raw(b"{}")


class DeltaIn(Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class EventIn(Struct):
    type: str
    index: int = 0
    message: StartIn | None = None
    content_block: BlockIn | None = None
    delta: DeltaIn | None = None
    usage: UsageIn | None = None
    policy_version: int | None = None
    error: Any = None


WHAT = "an event of the engine's stream"
DECODER = msgspec.json.Decoder(EventIn)
_SKIPPED_DELTAS = frozenset({"citations_delta"})


class MessagesStreamReader(SseStreamReader):
    def __init__(self) -> None:
        super().__init__()
        self._tools: dict[int, int] = {}
        """Which tool call a block is."""
        self._whole_input: dict[int, str] = {}
        """The input that came with the start of a block, for calls that get no delta."""
        self._usage = UsageIn()
        self._stop_reason: str | None = None
        self._model = ""
        self._policy_version = 0

    def _read(self, payload: bytes, events: list[Event]) -> None:
        """Kinds of events that we do not know are skipped, as the API asks its clients to do."""
        event = read(DECODER, payload, WHAT)
        kind = event.type
        if kind == "content_block_delta" and event.delta is not None:
            self._read_delta(event.index, event.delta, events)
        elif kind == "content_block_start" and event.content_block is not None:
            self._read_block(event.index, event.content_block, events)
        elif kind == "content_block_stop":
            if whole := self._whole_input.pop(event.index, ""):
                events.append(ToolCallDelta(self._tools[event.index], whole))
        elif kind == "message_start" and event.message is not None:
            self._model = event.message.model or ""
            self._note_usage(event.message.usage)
        elif kind == "message_delta":
            self._note_usage(event.usage)
            self._policy_version = event.policy_version or self._policy_version
            self._stop_reason = event.delta.stop_reason if event.delta else self._stop_reason
        elif kind == "message_stop":
            events.append(self._end())
        elif kind == "error":
            raise_engine_error(event.error)

    def _end(self) -> End:
        self._ended = True
        finish = read_finish(self._stop_reason)
        return End(finish, read_usage(self._usage), None, self._policy_version, self._model)

    def _read_block(self, index: int, block: BlockIn, events: list[Event]) -> None:
        if block.type == "tool_use":
            self._tools[index] = len(self._tools)
            self._whole_input[index] = read_input(block.input)
            events.append(ToolCallDelta(self._tools[index], "", block.id, block.name))
        elif block.type == "redacted_thinking":
            events.append(redacted_delta(block.data))
        elif block.type == "thinking":
            if block.thinking or block.signature:
                events.append(ReasoningDelta(block.thinking, block.signature))
        elif block.type != "text":
            raise WireError(f"blocks of type {block.type[:60]!r} are not known here")
        elif block.text:
            events.append(TextDelta(block.text))

    def _read_delta(self, index: int, delta: DeltaIn, events: list[Event]) -> None:
        if delta.type == "text_delta":
            if delta.text:
                events.append(TextDelta(delta.text))
        elif delta.type == "thinking_delta":
            if delta.thinking:
                events.append(ReasoningDelta(delta.thinking))
        elif delta.type == "signature_delta":
            events.append(ReasoningDelta("", delta.signature))
        elif delta.type == "input_json_delta":
            self._read_input(index, delta.partial_json, events)
        elif delta.type not in _SKIPPED_DELTAS:
            raise WireError(f"deltas of type {delta.type[:60]!r} are not known here")

    def _read_input(self, index: int, text: str, events: list[Event]) -> None:
        if index not in self._tools:
            raise WireError(f"{WHAT} adds tool input to block {index}, which is no tool call")
        if text:
            self._whole_input.pop(index, None)
            events.append(ToolCallDelta(self._tools[index], text))

    def _note_usage(self, usage: UsageIn | None) -> None:
        """Counts are cumulative; an event that leaves one out repeats it."""
        for name in UsageIn.__struct_fields__ if usage is not None else ():
            if (count := getattr(usage, name)) is not None:
                setattr(self._usage, name, count)


class MessagesStreamWriter:
    """Text is the hot path: what stands around it is built once per block."""

    def __init__(self, call: ModelCall) -> None:
        self._call = call
        self._index = -1
        self._kind = ""
        """Of the open block; empty if none is open."""
        self._tool = -1
        self._order = ToolOrder()
        self._before_text = b""

    def open(self) -> bytes:
        return _event({"type": "message_start", "message": message_out(self._call.model, [], None, Usage())})

    def write(self, event: Event) -> bytes:
        if isinstance(event, TextDelta):
            opened = b"" if self._kind == "text" else self._open_text()
            return b"%b%b%b}}\n\n" % (opened, self._before_text, string(event.text))
        if isinstance(event, ToolCallDelta):
            return b"".join([self._write_tool(delta) for delta in self._order.push(event)])
        if isinstance(event, ReasoningDelta):
            return self._write_reasoning(event)
        return self._end(event)

    def error(self, message: str) -> bytes:
        return _event(error_out(message, "api_error"))

    def _open_text(self) -> bytes:
        opened = self._switch("text", {"type": "text", "text": ""})
        self._before_text = self._before("text_delta", "text")
        return opened

    def _write_reasoning(self, event: ReasoningDelta) -> bytes:
        if (hidden := redacted_data(event.signature)) is not None:
            return self._switch("hidden", {"type": "redacted_thinking", "data": hidden}) + self._close()
        opened = b""
        if self._kind != "thinking":
            opened = self._switch("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        if event.text:
            opened += b"%b%b}}\n\n" % (self._before("thinking_delta", "thinking"), string(event.text))
        if event.signature:
            opened += b"%b%b}}\n\n" % (self._before("signature_delta", "signature"), string(event.signature))
            # A signature vouches for one whole block, so what comes next is another one.
            opened += self._close()
        return opened

    def _write_tool(self, delta: ToolCallDelta) -> bytes:
        opened = b""
        if self._kind != "tool" or self._tool != delta.index:
            opened = self._close() + self._start(
                "tool", {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
            )
            self._tool = delta.index
        if delta.arguments:
            opened += b"%b%b}}\n\n" % (self._before("input_json_delta", "partial_json"), string(delta.arguments))
        return opened

    def _switch(self, kind: str, block: dict[str, Any]) -> bytes:
        """End the tool calls and whatever else is open, and open `block`."""
        waiting = b"".join([self._write_tool(delta) for delta in self._order.flush()])
        return waiting + self._close() + self._start(kind, block)

    def _start(self, kind: str, block: dict[str, Any]) -> bytes:
        self._index += 1
        self._kind = kind
        return _event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _close(self) -> bytes:
        if not self._kind:
            return b""
        self._kind = ""
        return _event({"type": "content_block_stop", "index": self._index})

    def _before(self, kind: str, field: str) -> bytes:
        return (
            f'event: content_block_delta\ndata: {{"type":"content_block_delta","index":{self._index},'
            f'"delta":{{"type":"{kind}","{field}":'
        ).encode()

    def _end(self, end: End) -> bytes:
        waiting = b"".join([self._write_tool(delta) for delta in self._order.flush()])
        delta = {"stop_reason": FINISH_WORDS[end.finish], "stop_sequence": None}
        last: dict[str, Any] = {"type": "message_delta", "delta": delta, "usage": usage_out(end.usage)}
        if end.policy_version:
            last["policy_version"] = end.policy_version
        return waiting + self._close() + _event(last) + _event({"type": "message_stop"})


def _event(event: dict[str, Any]) -> bytes:
    return sse(dumps(event), event["type"])
