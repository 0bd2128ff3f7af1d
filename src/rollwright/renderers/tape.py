"""The tape: ids of a conversation as the engine saw them, and whose they are.

A tape never changes. What follows is another tape that holds only what it added and points to the one before, so
extending costs what is new, and two futures of one conversation share their past. `ids` lays the whole of it out in a
buffer that the tapes of one line share and grow in place; a branch takes a copy when its ids are first asked for.

Attribution is worked out when it is asked for, from the byte lengths of the tokens: a token belongs to the text that
its first byte lies in.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from rollwright.wire import Role, ToolSpec, UsageError
from rollwright.wire.arrays import Ids, Mask


class Run(NamedTuple):
    """Neighbouring tokens of one origin. The runs of a tape follow one another without a gap."""

    start: int
    stop: int
    message: int
    """Index of the message in the conversation; -1 for what the format adds by itself."""
    role: Role
    sampled: bool
    """The engine sampled these tokens. Only they can be trained on."""
    content: bool
    """The message's own words; otherwise frames, tags and control tokens. What was sampled is content."""


class Placeholder(NamedTuple):
    """Where an image stands. The engine may widen the range; the ids here hold one placeholder per image."""

    start: int
    stop: int
    message: int
    sha256: str


class Origin(Protocol):
    """Whose the added ids of one tape are, with positions counted from the first added id."""

    def runs(self, ids: Ids) -> list[Run]: ...

    def images(self, ids: Ids) -> list[Placeholder]: ...


@dataclass(frozen=True, slots=True)
class Sampled:
    """An answer of the model."""

    message: int

    def runs(self, ids: Ids) -> list[Run]:
        return [Run(0, len(ids), self.message, "assistant", True, True)] if len(ids) else []

    def images(self, ids: Ids) -> list[Placeholder]:
        return []


class _Buffer:
    """An array of ids that grows by doubling. What was written is never changed."""

    __slots__ = ("ids", "length", "lock")

    def __init__(self, ids: Ids) -> None:
        self.ids = ids
        self.length = len(ids)
        self.lock = threading.Lock()

    def grow(self, at: int, pieces: list[Ids], need: int) -> bool:
        """Write `pieces` from `at` on, if nobody else has written there."""
        with self.lock:
            if self.length != at:
                return False
            if need > len(self.ids):
                grown = np.empty(max(need, 2 * len(self.ids)), np.int32)
                grown[:at] = self.ids[:at]
                self.ids = grown
            np.concatenate(pieces, out=self.ids[at:need])
            self.length = need
            return True


# Not frozen by its class, which would cost as much as the rest of making one; nobody but `ids` ever sets a field.
@dataclass(slots=True, eq=False, kw_only=True)
class Tape:
    """A conversation up to here. `Renderer.render` makes the first one, `sample` and `Renderer.extend` the next."""

    added: Ids
    """The ids that this tape has and the one before has not."""
    origin: Origin
    before: Tape | None = None
    start: int = 0
    """How many ids the tape before has."""
    messages: int
    """How many messages the tape holds, an answer that was sampled included."""
    open: bool
    """The tape ends where the model is to speak."""
    tools: tuple[ToolSpec, ...] = ()
    tools_hash: str = ""
    """SHA-256 of the tool list: another list begins another tape."""
    reasoned: bool = False
    """Somewhere there is reasoning that the template may drop later."""
    note: str = ""
    """What the family's table noted about the beginning, for its own reasons not to extend."""
    calls: Mapping[str, str] = field(default_factory=dict)
    """Names of the tools that the last answer called, by call id, where the format repeats them with a result."""
    _buffer: _Buffer | None = None

    def __len__(self) -> int:
        return self.start + len(self.added)

    def __repr__(self) -> str:
        state = "open" if self.open else "closed"
        return f"<Tape {len(self)} ids, {self.messages} messages, {state}>"

    def sample(self, ids: Ids, calls: Mapping[str, str] | None = None) -> Tape:
        """The tape with what the engine sampled, its stop token included if there was one. `calls` names the tools of
        the parsed answer by call id, for formats that repeat the name with the result."""
        if not self.open:
            raise UsageError("a tape takes an answer only where the model is to speak; extend it first")
        return Tape(
            added=np.ascontiguousarray(ids, np.int32), origin=Sampled(self.messages), before=self, start=len(self),
            messages=self.messages + 1, open=False, tools=self.tools, tools_hash=self.tools_hash,
            reasoned=self.reasoned, note=self.note, calls=calls or {},
        )  # fmt: skip

    @property
    def ids(self) -> Ids:
        """All ids, not to be written to. Along one line of tapes this costs what was added since it was last asked."""
        if self._buffer is None:
            self._buffer = self._laid_out()
        view = self._buffer.ids[: len(self)]
        view.flags.writeable = False
        return view

    def _laid_out(self) -> _Buffer:
        pieces: list[Ids] = []
        for tape in self._backwards():
            if tape._buffer is not None:
                pieces.reverse()
                if tape._buffer.grow(len(tape), pieces, len(self)):
                    return tape._buffer
                return _Buffer(np.concatenate([tape.ids, *pieces]))
            pieces.append(tape.added)
        pieces.reverse()
        return _Buffer(np.concatenate(pieces) if len(pieces) > 1 else pieces[0])

    def _backwards(self) -> Iterator[Tape]:
        tape: Tape | None = self
        while tape is not None:
            yield tape
            tape = tape.before

    @property
    def runs(self) -> tuple[Run, ...]:
        """Whose each token is."""
        return tuple(
            run._replace(start=run.start + tape.start, stop=run.stop + tape.start)
            for tape in reversed(list(self._backwards()))
            for run in tape.origin.runs(tape.added)
        )

    @property
    def images(self) -> tuple[Placeholder, ...]:
        """Where images stand, in order."""
        return tuple(
            image._replace(start=image.start + tape.start, stop=image.stop + tape.start)
            for tape in reversed(list(self._backwards()))
            for image in tape.origin.images(tape.added)
        )

    def sampled_mask(self) -> Mask:
        """True where the engine sampled."""
        return self._mask([run.sampled for run in self.runs])

    def content_mask(self) -> Mask:
        """True where a message speaks, sampled or not; false on frames, tags and control tokens of the prompt."""
        return self._mask([run.content for run in self.runs])

    def _mask(self, flags: list[bool]) -> Mask:
        runs = self.runs
        return np.repeat(np.array(flags, np.bool_), [run.stop - run.start for run in runs])
