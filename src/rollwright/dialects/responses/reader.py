"""The stream of the Responses API, read. Its end is `response.completed` or `response.incomplete`.

Deltas are passed on as they come. An item that is finished without them is taken from its last event, so a server that
sends only whole items is understood too."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from rollwright.dialects.borders import raise_engine_error
from rollwright.dialects.jsontext import read, string
from rollwright.dialects.streaming import SseStreamReader
from rollwright.wire import Event, ReasoningDelta, TextDelta, ToolCallDelta, WireError

from .calls import CUSTOM, INPUT_BEGINS, INPUT_ENDS, SHELL
from .items import ItemIn, read_call, reasoning_text
from .reply import ResponseIn, message_text, read_end


class EventIn(Struct):
    type: str
    output_index: int = 0
    summary_index: int = 0
    delta: str = ""
    item: ItemIn | None = None
    response: ResponseIn | None = None
    message: str | None = None
    code: str | int | None = None
    error: Any = None


WHAT = "an event of the engine's stream"
DECODER = msgspec.json.Decoder(EventIn)
_TEXT = frozenset({"response.output_text.delta", "response.refusal.delta"})
_REASONING = frozenset({"response.reasoning_text.delta", "response.reasoning_summary_text.delta"})
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})


class ResponsesStreamReader(SseStreamReader):
    def __init__(self) -> None:
        super().__init__()
        self._tools: dict[int, int] = {}
        """Which tool call an output item is."""
        self._told: set[int] = set()
        """Output items of which a delta came."""
        self._refused = False

    def _read(self, payload: bytes, events: list[Event]) -> None:
        """Most kinds repeat what deltas said, and are skipped like those that we do not know."""
        event = read(DECODER, payload, WHAT)
        kind = event.type
        if kind in _TEXT:
            self._refused = self._refused or kind == "response.refusal.delta"
            self._tell(event.output_index, TextDelta(event.delta), events)
        elif kind in _REASONING:
            self._tell(event.output_index, ReasoningDelta(event.delta), events)
        elif kind == "response.function_call_arguments.delta":
            self._tell(event.output_index, ToolCallDelta(self._tool(event.output_index), event.delta), events)
        elif kind == "response.custom_tool_call_input.delta":
            self._tell(event.output_index, ToolCallDelta(self._tool(event.output_index), _inside(event.delta)), events)
        elif kind == "response.reasoning_summary_part.added" and event.summary_index:
            self._tell(event.output_index, ReasoningDelta("\n\n"), events)
        elif kind == "response.output_item.added" and event.item is not None:
            self._open(event.output_index, event.item, events)
        elif kind == "response.output_item.done" and event.item is not None:
            self._close(event.output_index, event.item, events)
        elif kind in _ENDS and event.response is not None:
            self._end(event.response, events)
        elif kind == "error" or event.error is not None:
            raise_engine_error(event.error or {"message": event.message, "code": event.code})

    def _tell(self, index: int, event: TextDelta | ReasoningDelta | ToolCallDelta, events: list[Event]) -> None:
        piece = event.arguments if isinstance(event, ToolCallDelta) else event.text
        if piece:
            self._told.add(index)
            events.append(event)

    def _tool(self, index: int) -> int:
        if index not in self._tools:
            raise WireError(f"{WHAT} adds arguments to item {index}, which is no function call")
        return self._tools[index]

    def _open(self, index: int, item: ItemIn, events: list[Event]) -> None:
        if not item.is_call or item.type == SHELL or index in self._tools:
            return
        arguments = INPUT_BEGINS + '"' if item.type == CUSTOM else item.arguments
        events.append(self._begin(index, arguments, item.called, item.tool))
        if item.arguments:
            self._told.add(index)

    def _begin(self, index: int, arguments: str, id: str, name: str) -> ToolCallDelta:
        self._tools[index] = len(self._tools)
        return ToolCallDelta(self._tools[index], arguments, id, name)

    def _close(self, index: int, item: ItemIn, events: list[Event]) -> None:
        if item.is_call:
            self._close_call(index, item, events)
        elif item.type == "reasoning":
            text = "" if index in self._told else reasoning_text(item)
            if text or item.encrypted_content:
                events.append(ReasoningDelta(text, item.encrypted_content or ""))
        elif item.type != "message":
            raise WireError(f"output items of type {item.type[:60]!r} are not known here")
        elif index not in self._told:
            self._tell(index, TextDelta(message_text(item)), events)

    def _close_call(self, index: int, item: ItemIn, events: list[Event]) -> None:
        """The shell is called all at once; the rest of another call is what no delta has told."""
        if item.type == SHELL:
            call = read_call(item)
            events.append(self._begin(index, call.arguments, call.id, call.name))
            return
        self._open(index, item, events)
        whole = _inside(item.input) if item.type == CUSTOM else item.arguments
        if index not in self._told:
            self._tell(index, ToolCallDelta(self._tools[index], whole), events)
        if item.type == CUSTOM:
            events.append(ToolCallDelta(self._tools[index], '"' + INPUT_ENDS))

    def _end(self, response: ResponseIn, events: list[Event]) -> None:
        called = [ToolCallDelta(index) for index in self._tools.values()]
        events.append(read_end(response, called, self._refused))
        self._ended = True


def _inside(text: str) -> str:
    """A piece of free text as it stands inside of a JSON string."""
    return string(text).decode()[1:-1]
