"""What a renderer promises, and the words it answers with. No family and no vocabulary is known here.

The life of a conversation:

    tape = renderer.render(messages, tools)         # ids of the whole prompt, up to where the model speaks
    parser = renderer.parser(tape)                  # one per answer
    for ids in engine.generate(tape.ids, stop_ids=renderer.stop_ids):
        events += parser.feed(ids)                  # TextDelta, ReasoningDelta, ToolCallDelta
    events += parser.end()                          # what was held back, then End
    tape = tape.sample(completion_ids)              # exactly what the engine sampled, its stop token included
    longer = renderer.extend(tape, new_messages)    # a Tape whose `added` is all that is new, or a Declined

A renderer, its family and its options never change, so any number of threads may use one renderer. A tape never changes
either; extending it makes another that shares it. A parser belongs to one answer and one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from rollwright.wire import Delta, Event, Message, Role, ToolSpec
from rollwright.wire.arrays import Ids

from .engine import TokenEngine
from .tape import Tape


class Reason(StrEnum):
    """Why an extension was declined. The caller renders again; what was sampled so far stays a branch of its own."""

    TOOLS_CHANGED = "tools_changed"
    """The tool list is not the one that the tape begins with."""
    THINKING_DROPPED = "thinking_dropped"
    """The template shows earlier reasoning no more once these messages are added. `ThinkingPolicy.KEEP` extends."""
    NOT_SAMPLED = "not_sampled"
    """The tape does not end in an answer of the model, so there is nothing to continue from."""
    STOPPED_OTHERWISE = "stopped_otherwise"
    """The answer ended in a stop token that does not close a turn in this format."""
    ROLE_NOT_APPENDED = "role_not_appended"
    """These messages cannot follow an answer in this format, or are answers that were not sampled."""
    HEAD_MOVED = "head_moved"
    """The template writes something near the end of the conversation that these messages would move."""
    UNVERIFIED = "unverified"
    """A foreign template, and how it appends these messages could not be proven."""


class LiteralPolicy(StrEnum):
    """What a control string inside a text becomes."""

    LITERAL = "literal"
    """Text: it gets ids that spell it, never the control id. No message can forge a turn."""
    PARITY = "parity"
    """What the model's own template and tokenizer make of it: the control id."""
    REJECT = "reject"
    """A UsageError."""


class ThinkingPolicy(StrEnum):
    """What becomes of the reasoning of earlier turns."""

    TEMPLATE = "template"
    """As the model's own template does. Many drop it when the user speaks again, which is no extension."""
    KEEP = "keep"
    """It stays where it was, so that every turn extends the one before."""


class Literals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The literal policy of each role. Tool descriptions are the system's."""

    system: LiteralPolicy = LiteralPolicy.LITERAL
    user: LiteralPolicy = LiteralPolicy.LITERAL
    assistant: LiteralPolicy = LiteralPolicy.LITERAL
    tool: LiteralPolicy = LiteralPolicy.LITERAL

    def of(self, role: Role) -> LiteralPolicy:
        found: LiteralPolicy = getattr(self, role)
        return found


PARITY = Literals(LiteralPolicy.PARITY, LiteralPolicy.PARITY, LiteralPolicy.PARITY, LiteralPolicy.PARITY)
"""Every role as the model's own template has it."""


class RenderOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one renderer renders. Fields that a family has no use for change nothing."""

    thinking: bool | None = None
    """Whether the model is asked to think; None is the template's own default."""
    history: ThinkingPolicy = ThinkingPolicy.TEMPLATE
    """What becomes of the reasoning of earlier turns."""
    literal: Literals = Literals()
    """What becomes of control strings inside texts."""
    date: str = "26 Jul 2024"
    """Today, for formats that tell it. Fixed, because a prompt that changes at midnight cannot be compared."""
    effort: str = ""
    """Reasoning effort, for formats that ask for one; empty is the template's own default."""


class Status(StrEnum):
    """What became of an attempt to call a tool."""

    OK = "ok"
    BAD_ARGUMENTS = "bad_arguments"
    """A call with a name, whose arguments are not of the format. Its events carry the text as it was written."""
    UNCLOSED = "unclosed"
    """A call with a name that the answer broke off in."""
    MALFORMED = "malformed"
    """No name could be read. The attempt is kept as text, tags included."""


class Attempt(msgspec.Struct, frozen=True):
    """One attempt to call a tool, in the order they were made."""

    status: Status
    index: int
    """Of the call's events; -1 for an attempt that became text."""
    text: str
    """What the model wrote between the tags."""


class Declined(msgspec.Struct, frozen=True):
    """No extension, and why. Falsy nowhere: ask with isinstance."""

    reason: Reason


class Parser(Protocol):
    """Tokens in, events out. Lossless: what is no call and no reasoning is text, down to the last newline; the only
    characters that vanish are the tags and the newlines that the format itself puts beside them.

    The events of a stream that breaks off are a beginning of the events of the whole, wherever it is cut.
    """

    @property
    def attempts(self) -> Sequence[Attempt]:
        """All attempts to call a tool so far, whatever became of them."""
        ...

    def feed(self, ids: Ids) -> list[Delta]:
        """The next tokens, in pieces of any size. Bytes of a character that is not complete are held back, and so is
        text that may turn out to belong to a tag. Tokens after a stop token are refused with WireError."""
        ...

    def end(self, *, cut: bool = False) -> list[Event]:
        """What was held back, then End. Its finish is LENGTH if no stop token was seen and the caller says that the
        answer was cut, TOOL_CALLS if there is a call, else STOP. The token client adds usage and tokens to the End."""
        ...


class Renderer(Protocol):
    """Messages to ids and back for one model. Pure: nothing it does is seen by another caller."""

    @property
    def family(self) -> str:
        """The name of the family's table."""
        ...

    @property
    def engine(self) -> TokenEngine: ...

    @property
    def options(self) -> RenderOptions: ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer. The first closes a turn of this format."""
        ...

    @property
    def image_ids(self) -> tuple[int, ...]:
        """What stands for an image in a prompt; nothing if the format has no images."""
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool = True) -> Tape:
        """The ids that the model's own template and tokenizer give. With `prompt`, the tape ends where the model is to
        speak; without, after the last message. UsageError for a conversation that the template refuses."""
        ...

    def extend(
        self, tape: Tape, messages: Sequence[Message], tools: Sequence[ToolSpec] | None = None
    ) -> Tape | Declined:
        """The tape with `messages` after its last answer, ready for the next. Costs what the messages cost.

        What was sampled is never tokenized again; a close that the engine did not get to (the answer was cut by length)
        is added first. Wherever the template itself leaves the beginning alone, the ids are those of a full render.
        `tools` is the list that the caller has now, None for "as before".
        """
        ...

    def parser(self, tape: Tape) -> Parser:
        """Reads the answer to `tape`. The tape's tools say which arguments are strings."""
        ...

    def answer(self, tape: Tape, message: Message) -> Ids:
        """What the model would have sampled after `tape` to say this message, stop token included: for scripted models
        and tests. Parsing it gives the message back."""
        ...
