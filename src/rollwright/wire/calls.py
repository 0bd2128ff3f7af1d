"""One model call: what was asked, what came back, and the events in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from .arrays import Experts, Ids, Logprobs, check_column
from .errors import WireError
from .messages import Message, Part, Reasoning, Text, ToolCall, ToolSpec


class Sampling(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """How tokens are drawn. `None` leaves the choice to the engine."""

    temperature: float | None = None
    """0 is greedy."""
    top_p: float | None = None
    """Nucleus mass."""
    max_tokens: int | None = None
    """Most tokens of one answer."""
    seed: int | None = None
    """Seed for engines that honour one."""
    stop: tuple[str, ...] = ()
    """Strings that end an answer."""


class Source:
    """How a call stood in the request that it was read from, for an engine of the same dialect. Opaque to all but
    `dialects`, and no part of what a call says: it is equal to any other and to none at all."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, Source)

    def __hash__(self) -> int:
        return hash(None)


class ModelCall(msgspec.Struct, frozen=True, gc=False):
    """A request in no dialect. `extra` holds the request fields that we do not know, to be passed on untouched."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    sampling: Sampling = Sampling()
    stream: bool = False
    return_tokens: bool = False
    """Ask for token ids, logprobs and, where there are any, routed experts."""
    extra: dict[str, Any] = {}
    dialect: str = ""
    """The dialect that `extra` was read in. It means nothing in another one, so an engine of another drops it."""
    source: Source | None = None
    """What the call was read from. A copy of the call that says something else may keep it."""
    name: str = ""
    """What the answer is called by whoever asks; empty if they have no name for it."""
    follows: str = ""
    """The name of the answer that the call goes on after. Equal words may have been sampled in other tokens elsewhere,
    so an engine that keeps conversations goes on in this one or in none. Empty: whoever asks does not know."""


class Finish(StrEnum):
    """Why the model stopped speaking."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    REFUSAL = "refusal"


class Usage(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.prompt_tokens + other.prompt_tokens, self.completion_tokens + other.completion_tokens)


class Routing(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Which experts served which token. `rows[i]` belongs to the token at absolute position `start + i` of the
    conversation. An engine knows no row for the last token it sampled: that row comes with the next turn."""

    start: int
    rows: Experts

    def __post_init__(self) -> None:
        if self.rows.dtype not in (np.dtype("u1"), np.dtype("<u2")) or self.rows.ndim != 3:
            raise WireError(f"routed experts must be uint8 or uint16 [rows, layers, top_k], got {self.rows.dtype}")
        if self.start < 0 or not self.rows.flags.c_contiguous:
            raise WireError("routed experts must be contiguous and start at a position >= 0")


class CallTokens(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Exactly what the engine received and sampled in one call."""

    prompt_ids: Ids
    completion_ids: Ids
    logprobs: Logprobs
    """One for each completion id."""
    routing: Routing | None = None

    def __post_init__(self) -> None:
        check_column(self.prompt_ids, "i4", "prompt ids")
        check_column(self.completion_ids, "i4", "completion ids")
        check_column(self.logprobs, "f4", "logprobs")
        if len(self.completion_ids) != len(self.logprobs):
            raise WireError(f"{len(self.completion_ids)} completion ids came with {len(self.logprobs)} logprobs")


class ModelReply(msgspec.Struct, frozen=True, gc=False):
    message: Message
    finish: Finish
    usage: Usage = Usage()
    tokens: CallTokens | None = None
    policy_version: int = 0
    """Which weights spoke; engines that do not say speak with version 0."""
    model: str = ""
    queue_s: float = 0.0
    """How long the call waited on our side for a slot before it was sent."""


class TextDelta(msgspec.Struct, frozen=True, gc=False, tag="text"):
    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False, tag="reasoning"):
    text: str
    signature: str = ""


class ToolCallDelta(msgspec.Struct, frozen=True, gc=False, tag="tool_call"):
    """The first delta of an index carries id and name; all carry the next piece of the arguments' text."""

    index: int
    arguments: str = ""
    id: str = ""
    name: str = ""


class End(msgspec.Struct, frozen=True, gc=False, tag="end"):
    """The terminal event. A stream that lacks it was cut."""

    finish: Finish
    usage: Usage = Usage()
    tokens: CallTokens | None = None
    policy_version: int = 0
    model: str = ""
    queue_s: float = 0.0
    """How long the call waited on our side for a slot before it was sent."""


Delta = TextDelta | ReasoningDelta | ToolCallDelta
Event = Delta | End


class ReplyBuilder:
    """Folds events into a reply. Parts keep the order in which they began."""

    def __init__(self) -> None:
        self._parts: list[TextDelta | ReasoningDelta | ToolCallDelta] = []
        self._pieces: list[list[str]] = []
        self._tool_slot: dict[int, int] = {}
        self._end: End | None = None

    def apply(self, event: Event) -> None:
        if self._end is not None:
            raise WireError("an event came after the end of the answer")
        if isinstance(event, End):
            self._end = event
        elif isinstance(event, ToolCallDelta):
            self._apply_tool(event)
        else:
            self._apply_text(event)

    def _apply_text(self, event: TextDelta | ReasoningDelta) -> None:
        last = self._parts[-1] if self._parts else None
        # A signature seals a thought: what is thought afterwards is another one, with its own.
        sealed = isinstance(last, ReasoningDelta) and last.signature
        if type(last) is not type(event) or sealed:
            self._parts.append(event)
            self._pieces.append([event.text])
            return
        self._pieces[-1].append(event.text)
        if isinstance(event, ReasoningDelta) and event.signature:
            self._parts[-1] = event

    def _apply_tool(self, event: ToolCallDelta) -> None:
        slot = self._tool_slot.get(event.index)
        if slot is None:
            self._tool_slot[event.index] = len(self._parts)
            self._parts.append(event)
            self._pieces.append([event.arguments])
        else:
            self._pieces[slot].append(event.arguments)

    @property
    def ended(self) -> bool:
        return self._end is not None

    def message(self) -> Message:
        """What was said so far."""
        return Message("assistant", tuple(self._built()))

    def _built(self) -> Iterator[Part]:
        for head, pieces in zip(self._parts, self._pieces, strict=True):
            text = "".join(pieces)
            if isinstance(head, TextDelta):
                yield Text(text)
            elif isinstance(head, ReasoningDelta):
                yield Reasoning(text, head.signature)
            else:
                yield ToolCall(head.id, head.name, text)

    def reply(self) -> ModelReply:
        if self._end is None:
            raise WireError("the stream was cut before its end")
        end = self._end
        return ModelReply(self.message(), end.finish, end.usage, end.tokens, end.policy_version, end.model, end.queue_s)


def reply_of(events: Iterable[Event]) -> ModelReply:
    builder = ReplyBuilder()
    for event in events:
        builder.apply(event)
    return builder.reply()


def events_of(reply: ModelReply) -> Iterator[Event]:
    """A finished reply as the shortest stream of events."""
    index = 0
    for part in reply.message.parts:
        if isinstance(part, Text):
            yield TextDelta(part.text)
        elif isinstance(part, Reasoning):
            yield ReasoningDelta(part.text, part.signature)
        elif isinstance(part, ToolCall):
            yield ToolCallDelta(index, part.arguments, part.id, part.name)
            index += 1
    yield end_of(reply)


def end_of(reply: ModelReply) -> End:
    """The terminal event of a finished reply."""
    return End(reply.finish, reply.usage, reply.tokens, reply.policy_version, reply.model, reply.queue_s)
