"""The stream of the Responses API, written: items one after another, each added, filled and done, and at the end the
whole response once more, as the API does. The text is therefore kept until the stream ends."""

from __future__ import annotations

from typing import Any

from rollwright.dialects.jsontext import dumps, new_id, string
from rollwright.dialects.sse import sse
from rollwright.dialects.toolorder import ToolOrder
from rollwright.wire import (
    End,
    Event,
    ModelCall,
    Part,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
)

from .calls import CUSTOM, DELTAS, FUNCTION, PLAIN, SHELL, input_of, ways_in
from .reply import finished, item_out, response_head, text_out


class _Item:
    """The open item: what is known of it, and what stands around each of its deltas."""

    def __init__(self, index: int, delta: TextDelta | ReasoningDelta | ToolCallDelta, tool_kind: str) -> None:
        self.index = index
        self.first = delta
        self.kind, prefix = _KINDS[type(delta)]
        self.held = isinstance(delta, ToolCallDelta) and tool_kind != FUNCTION
        """Whether its pieces are JSON of which the client is told only what it says, which takes the whole of it."""
        if self.held:
            self.kind, prefix = DELTAS.get(tool_kind, ""), _HELD_PREFIXES[tool_kind]
        self.id = new_id(prefix)
        self.pieces: list[str] = []
        self.signature = ""
        self.where = {"item_id": self.id, "output_index": index}
        if not isinstance(delta, ToolCallDelta):
            self.where["content_index"] = 0
        self.head = b'event: %b.delta\ndata: {"type":"%b.delta",%b,' % (
            self.kind.encode(),
            self.kind.encode(),
            dumps(self.where)[1:-1],
        )
        if self.kind == "response.output_text":
            self.head += b'"logprobs":[],'

    @property
    def part(self) -> Part:
        text = "".join(self.pieces)
        if isinstance(self.first, ToolCallDelta):
            return ToolCall(self.first.id, self.first.name, text)
        if isinstance(self.first, ReasoningDelta):
            return Reasoning(text, self.signature)
        return Text(text)

    def holds(self, delta: TextDelta | ReasoningDelta | ToolCallDelta) -> bool:
        if isinstance(delta, ToolCallDelta):
            return isinstance(self.first, ToolCallDelta) and self.first.index == delta.index
        # A signature vouches for one whole item, so what comes after it is another one.
        return type(self.first) is type(delta) and not self.signature


_KINDS: dict[type, tuple[str, str]] = {
    TextDelta: ("response.output_text", "msg_"),
    ReasoningDelta: ("response.reasoning_text", "rs_"),
    ToolCallDelta: ("response.function_call_arguments", "fc_"),
}
_HELD_PREFIXES = {CUSTOM: "ctc_", SHELL: "lsh_"}


class ResponsesStreamWriter:
    def __init__(self, call: ModelCall) -> None:
        self._ways = ways_in(call)
        self._response = response_head(call)
        self._sequence = 0
        self._items: list[dict[str, Any]] = []
        self._item: _Item | None = None
        self._order = ToolOrder()

    def open(self) -> bytes:
        begun = {"response": self._response}
        return self._event("response.created", begun) + self._event("response.in_progress", begun)

    def write(self, event: Event) -> bytes:
        if isinstance(event, ToolCallDelta):
            return self._tools(self._order.push(event))
        if isinstance(event, End):
            return self._end(event)
        item = self._item
        if item is not None and item.holds(event):
            return self._delta(item, event)
        closed = self._tools(self._order.flush()) + self._close()
        item, opened = self._open(event)
        return closed + opened + self._delta(item, event)

    def error(self, message: str) -> bytes:
        failed = {**self._response, "status": "failed", "error": {"code": "server_error", "message": message}}
        return self._event("response.failed", {"response": failed})

    def _tools(self, deltas: list[ToolCallDelta]) -> bytes:
        out = b""
        for delta in deltas:
            item = self._item
            if item is None or not item.holds(delta):
                out += self._close()
                item, opened = self._open(delta)
                out += opened
            out += self._delta(item, delta)
        return out

    def _open(self, delta: TextDelta | ReasoningDelta | ToolCallDelta) -> tuple[_Item, bytes]:
        tool_kind = self._ways.get(delta.name, PLAIN).kind if isinstance(delta, ToolCallDelta) else ""
        item = self._item = _Item(len(self._items), delta, tool_kind)
        shown = item_out(item.part, self._ways, item.id, "in_progress")
        if "content" in shown:
            shown["content"] = []
        opened = self._event("response.output_item.added", {"output_index": item.index, "item": shown})
        if isinstance(delta, TextDelta):
            opened += self._event("response.content_part.added", {**item.where, "part": text_out("")})
        return item, opened

    def _delta(self, item: _Item, delta: TextDelta | ReasoningDelta | ToolCallDelta) -> bytes:
        piece = delta.arguments if isinstance(delta, ToolCallDelta) else delta.text
        if isinstance(delta, ReasoningDelta) and delta.signature:
            item.signature = delta.signature
        if not piece:
            return b""
        item.pieces.append(piece)
        return b"" if item.held else self._piece(item, piece)

    def _piece(self, item: _Item, piece: str) -> bytes:
        self._sequence += 1
        return b'%b"sequence_number":%d,"delta":%b}\n\n' % (item.head, self._sequence - 1, string(piece))

    def _close(self) -> bytes:
        """Say the open item once more, as a whole."""
        item, self._item = self._item, None
        if item is None:
            return b""
        text = "".join(item.pieces)
        shown = item_out(item.part, self._ways, item.id)
        self._items.append(shown)
        done = {"output_index": item.index, "item": shown}
        if item.held:
            words = input_of(text)
            told = bool(item.kind and words)
            whole = self._piece(item, words) if told else b""
            whole += self._event(f"{item.kind}.done", {**item.where, "input": words}) if item.kind else b""
        elif isinstance(item.first, ToolCallDelta):
            whole = self._event(f"{item.kind}.done", {**item.where, "name": shown["name"], "arguments": text})
        elif isinstance(item.first, ReasoningDelta):
            whole = self._event(f"{item.kind}.done", {**item.where, "text": text})
        else:
            whole = self._event(f"{item.kind}.done", {**item.where, "text": text, "logprobs": []})
            whole += self._event("response.content_part.done", {**item.where, "part": text_out(text)})
        return whole + self._event("response.output_item.done", done)

    def _end(self, end: End) -> bytes:
        closed = self._tools(self._order.flush()) + self._close()
        response = finished(self._response, self._items, end)
        return closed + self._event(f"response.{response['status']}", {"response": response})

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return sse(dumps(event), kind)
