"""The types of a family's table: everything that differs between chat formats, and nothing that does not.

To add a family, write a module beside this one with one `Family` and put it into `families/__init__.py`. Rendering,
extending, attribution and parsing are derived from the table by `render.py` and `parse.py`, so that extending equals
rendering by structure: both write each turn by the same line of the same table. Read `qwen.py` for a full example.

A render is a script: a list of pieces, each either a *frame* (a constant of the table, control strings included) or
what a message *said*. The text of the script is encoded in one go. Frames may be split anywhere except inside a control
string. Where a format needs more than constants, a field of the table is a small class with a `write` method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from rollwright.renderers.contract import Parser, Reason, RenderOptions, Status
from rollwright.renderers.engine import TokenEngine
from rollwright.renderers.script import Script
from rollwright.renderers.tape import Tape
from rollwright.wire import Delta, Message, Role, ToolCall, ToolSpec

Words = Callable[[str], str]
"""What the template does to a text before it shows it. Formats that strip make texts of different spaces look alike."""


def as_is(text: str) -> str:
    return text


def strip(text: str) -> str:
    return text.strip()


def any_text(text: str) -> bool:
    """Of formats that take every message of the user for a query."""
    return True


def trim_first_newlines(text: str) -> str:
    return text.lstrip("\n")


class Head(Protocol):
    """Everything before the first ordinary turn: the begin token, the system message, the tool list, and any message
    that the format folds into them."""

    def write(
        self, script: Script, messages: Sequence[Message], tools: Sequence[ToolSpec], options: RenderOptions
    ) -> int:
        """Write the head and return how many of `messages` are thereby written. UsageError for what is refused."""
        ...


class Heard(Protocol):
    """Turns of the user that the format treats apart, such as the one that has the tool list before it."""

    def write(self, script: Script, messages: Sequence[Message], at: int, tools: Sequence[ToolSpec]) -> bool:
        """Write `messages[at]` and say True, or write nothing and leave it to the table's `user`. `tools` is empty
        in an extension, which repeats no tool list."""
        ...


@dataclass(frozen=True, slots=True)
class Wrap:
    """A turn that is not the model's: what stands before and after its words."""

    open: str
    close: str
    """Up to the next turn, the newline after an end token included."""
    words: Words = as_is


@dataclass(frozen=True, slots=True)
class Results:
    """Results of tools. Neighbouring results share one turn."""

    open: str
    each_open: str
    each_close: str
    close: str
    words: Words = as_is
    between: str = ""
    """What stands between two results."""
    named: bool = False
    """`each_open` has a `{name}` that stands for the tool's name, and `{id}` for the call's id."""
    id_lead: str = ""
    """What stands between a result and the id of its call, in formats that write the id after it."""
    id_words: Words = as_is
    """How such a format writes an id."""
    by_call: bool = False
    """Results stand in the order of their calls, where each is of one call and no two of the same."""
    unnamed: str = ""
    """What stands for the name of a tool that nobody called."""
    images_last: bool = False
    """Images stand after the result that they belong to."""
    tail: Callable[[Script, Sequence[Message], int], None] | None = None
    """Writes what follows the results before `messages[at]`, where that depends on who speaks around them."""


class Shown(StrEnum):
    """When the reasoning of a turn that the template still shows is written."""

    FILLED = "filled"
    """If there is any, or if the turn is the last thing in the conversation."""
    ONLY_FILLED = "only_filled"
    """If there is any."""
    ALWAYS = "always"
    """Even if it is empty."""


class Past(StrEnum):
    """What becomes of reasoning once a later user message (a query) is there."""

    KEPT = "kept"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a turn shows its reasoning: `open`, the reasoning, `close`, then the answer."""

    begin: str
    """The tag alone, as the parser looks for it."""
    end: str
    open: str
    """The tag with what the format puts after it."""
    close: str
    """The tag with what the format puts before and after it."""
    shown: Shown
    past: Past
    dropped: str = ""
    """What stands where reasoning was dropped."""
    prompt: str = ""
    """What follows the open of the model's turn when it is asked to think."""
    prompt_off: str = ""
    """The same when it is asked not to."""
    resumes: str = ""
    """What follows results of tools when the model is asked to think, in formats where its turn goes on after them."""
    off_skip: str = ""
    """What the format puts between `prompt_off` and the answer, to be sampled by the model."""
    on: bool = True
    """What the template does when it is not told."""
    always: bool = False
    """The template asks for reasoning whatever it is told."""
    words: Words = as_is
    answer: Words = as_is
    """What is done to the answer after shown reasoning."""
    tells_query: Callable[[str], bool] = bool
    """Whether a user message of this text is a query. The default: any text that is not empty."""
    without_query: bool = False
    """Whether reasoning counts as current in a conversation that has no query at all."""
    in_content: bool = False
    """The template looks for reasoning inside the answer if it is given none. Imitated under PARITY only."""
    rest: Words = trim_first_newlines
    """What is done to the answer that is left after that."""


class CallReader(Protocol):
    """Reads the inside of one call as it comes."""

    def feed(self, text: str) -> list[Delta]: ...

    def close(self, closed: bool) -> tuple[list[Delta], Status]:
        """What was held back, and what became of the attempt; not `closed` if the answer broke off in it. With
        MALFORMED no event has been given."""
        ...


class Calls(Protocol):
    """How a turn calls tools."""

    @property
    def begin(self) -> str:
        """The tag that begins a call."""
        ...

    @property
    def end(self) -> str:
        """The tag that ends it."""
        ...

    @property
    def bare(self) -> bool:
        """A call has no tags and is the whole answer: `begin` is how it starts, and belongs to it."""
        ...

    @property
    def lead(self) -> str:
        """What the format puts between a text and the first call. Nothing if there is no text."""
        ...

    @property
    def between(self) -> str:
        """What it puts between two calls."""
        ...

    @property
    def tail(self) -> str:
        """What it puts after each call."""
        ...

    def write(self, script: Script, call: ToolCall) -> None:
        """One call, tags included."""
        ...

    def reader(self, tools: Sequence[ToolSpec], index: int, id: str) -> CallReader: ...


class Voice(Protocol):
    """Writes the model's own turn, in formats where it is more than reasoning, words and calls in a row."""

    def write(self, script: Script, messages: Sequence[Message], at: int) -> None:
        """The turn `messages[at]`. The script's `asks` says whether the prompt of another follows the last message."""
        ...

    def answer(self, script: Script, message: Message) -> None:
        """What the model samples after the prompt to say `message`."""
        ...


@dataclass(frozen=True, slots=True)
class Speech:
    """The model's own turn."""

    open: str
    close: str
    """The control string that the model samples to end its turn. It is the first of the family's stops."""
    gap: str
    """What the template puts after `close`. Nobody samples it, and every later turn needs it."""
    thinking: Thinking | None = None
    calls: Calls | None = None
    words: Words = as_is
    calls_open: str = ""
    """What stands before the first call, after its `lead`."""
    calls_close: str = ""
    """What stands after the last."""
    calls_hide_text: bool = False
    """The template does not show the text of a turn that calls tools."""
    one_call: bool = False
    """The template refuses more than one call in a turn."""
    after: Mapping[Role, str] = field(default_factory=dict)
    """What stands in the place of the prompt after this speaker, in formats whose turns end with it or go on."""
    voice: Callable[[RenderOptions], Voice] | None = None
    """Writes the turn in place of the lines above."""


@dataclass(frozen=True, slots=True)
class Family:
    """One chat format."""

    name: str
    fingerprints: tuple[str, ...]
    """Of the templates that this table was proven against; see `families.fingerprint`."""
    models: tuple[str, ...]
    """Regular expressions, searched in a lower-case model name, for models that come without a template."""
    head: Head
    user: Wrap
    speech: Speech
    results: Results | None
    """None: the format has no tool results."""
    stops: tuple[str, ...]
    """Control strings that end an answer; the first is `speech.close`."""
    closing: tuple[str, ...] = ()
    """Further stops that close a turn as well as the first does."""
    opening: tuple[str, ...] = ()
    """Stops that open what comes next, which is then not written again. What opens otherwise cannot follow them."""
    system: Wrap | None = None
    """A system message that is not the first; None if the template refuses it."""
    plain: str = r"\s+"
    """A pattern of added tokens that are text and no control strings (runs of spaces, HTML tags)."""
    image: str = ""
    """The placeholder of an image, control strings included; empty if the format has none."""
    needs_query: bool = False
    """The template refuses a conversation without a query."""
    heard: Heard | None = None
    """Turns of the user that are more than `user` around their words."""
    declines: Callable[[TokenEngine, Tape, Sequence[Message]], Reason | None] | None = None
    """A reason of this format's own not to append these messages to the tape."""
    parser: Callable[[TokenEngine, RenderOptions, Tape], Parser] | None = None
    """For formats that `parse.py` cannot read. Gets the tape that the answer follows."""
