"""The push parser: token ids in, events out, for every family whose turns are tags around text.

A tag that is a token of the vocabulary is known by its id, so its spelling inside a text is text. A tag that the
vocabulary has no token for is looked for in the text itself. Only the newlines that the format puts beside its tags
vanish, each of them whole or not at all.
"""

from __future__ import annotations

import codecs
from enum import Enum

import numpy as np

from rollwright.wire import Delta, End, Event, Finish, ReasoningDelta, TextDelta, WireError
from rollwright.wire.arrays import Ids

from .contract import Attempt, Status
from .families.table import CallReader
from .tags import Side, Tags
from .tape import Tape

_Decoder = codecs.getincrementaldecoder("utf-8")


class State(Enum):
    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


class PushParser:
    """Reads one answer. `inside` says that the prompt has begun the reasoning."""

    def __init__(self, tags: Tags, tape: Tape, *, inside: bool, skip: str = "") -> None:
        self._tags = tags
        self._tape = tape
        self._decoder = _Decoder("replace")
        self._out: list[Delta] = []
        self._state = State.REASONING if inside else State.TEXT
        # A call without tags looks like any text, so it counts only where tools were offered.
        self._side: Side = tags.thought if inside else tags.text if tape.tools or not tags.bare else tags.text_later
        # What the format puts after the last tag: it vanishes if it comes whole.
        self._skip = tags.prompt_skip if inside else skip
        # Text that may belong to a tag that is still to come.
        self._held = ""
        self._reader: CallReader | None = None
        self._body: list[str] = []
        # What vanished before the call, to be given back if the call turns out to be none.
        self._call_lead = ""
        self._calls = 0
        self._stopped = False
        self.attempts: list[Attempt] = []

    def feed(self, ids: Ids) -> list[Delta]:
        out: list[Delta] = []
        self._out = out
        tokens: list[int] = ids.tolist()
        start = 0
        for at in np.flatnonzero(self._tags.structural[ids]).tolist():
            self._take(tokens[start:at])
            self._take_tag(self._tags.names[tokens[at]])
            start = at + 1
        self._take(tokens[start:] if start else tokens)
        return out

    def end(self, *, cut: bool = False) -> list[Event]:
        self._out = []
        self._flush()
        self._speak(self._held)
        self._held = ""
        if self._state is State.CALL:
            # A format without an end tag lets the stop token end the call.
            self._close_call(closed=self._stopped and self._tags.calls is not None and not self._tags.calls.end)
        finish = Finish.TOOL_CALLS if self._calls else Finish.STOP
        return [*self._out, End(Finish.LENGTH if cut and not self._stopped else finish)]

    # From tokens to text

    def _take(self, tokens: list[int]) -> None:
        if not tokens:
            return
        if self._stopped:
            raise WireError(f"{len(tokens)} tokens came after the end of the answer")
        text = self._decoder.decode(b"".join(map(self._tags.bytes_of, tokens)))
        if text:
            self._take_text(text)

    def _take_tag(self, tag: str) -> None:
        self._flush()
        if self._stopped:
            raise WireError("a token came after the end of the answer")
        if tag in self._tags.stops:
            self._stopped = True
        elif not self._turn(tag):
            self._take_text(tag)

    def _flush(self) -> None:
        """A character that a tag cuts short will not be completed."""
        text = self._decoder.decode(b"", final=True)
        if text:
            self._take_text(text)

    # From text to events

    def _take_text(self, text: str) -> None:
        while text:
            text = self._held + text
            self._held = ""
            if self._skip:
                if len(text) < len(self._skip) and self._skip.startswith(text):
                    self._held = text
                    return
                text = text.removeprefix(self._skip)
                self._skip = ""
            found = self._side.seek.search(text) if self._side.seek else None
            if found is None:
                keep = len(text) - self._side.overlap(text)
                self._held = text[keep:]
                self._speak(text[:keep])
                return
            self._held = text[: found.start()]
            self._turn(found[0])
            text = text[found.end() :]

    def _speak(self, text: str) -> None:
        if not text:
            return
        if self._state is State.TEXT:
            self._out.append(TextDelta(text))
            if self._tags.bare:
                self._side = self._tags.text_later
        elif self._state is State.REASONING:
            self._out.append(ReasoningDelta(text))
        elif self._reader is not None:
            self._body.append(text)
            self._out += self._reader.feed(text)

    def _turn(self, tag: str) -> bool:
        """Follow a tag out of the state. False if it means nothing here and is text."""
        tags, state = self._tags, self._state
        if state is State.TEXT and tags.calls is not None and tag == tags.calls.begin:
            self._open_call()
        elif state is State.TEXT and tags.thinking is not None and tag == tags.thinking.begin:
            self._leave(tags.think_lead, State.REASONING, tags.thought, tags.thought_skip)
        elif state is State.REASONING and tags.thinking is not None and tag == tags.thinking.end:
            self._leave(tags.thought_lead, State.TEXT, tags.text, tags.answer_skip)
        elif state is State.CALL and tags.calls is not None and tag == tags.calls.end:
            self._close_call(closed=True)
        else:
            return False
        return True

    def _leave(self, lead: str, state: State, side: Side, skip: str) -> None:
        """Say what was held back, without what the format puts before the tag."""
        self._speak(self._held.removesuffix(lead))
        self._held = ""
        self._state, self._side, self._skip = state, side, skip

    # Calls

    def _open_call(self) -> None:
        calls = self._tags.calls
        assert calls is not None
        lead = self._tags.between if self._side is self._tags.text_later else self._tags.lead
        self._call_lead = lead if self._held.endswith(lead) else ""
        self._leave(lead, State.CALL, self._tags.call, "")
        self._body = []
        self._reader = calls.reader(self._tape.tools, self._calls, f"call_{self._tape.messages}_{self._calls}")
        if calls.bare:
            self._speak(calls.begin)

    def _close_call(self, closed: bool) -> None:
        calls, reader = self._tags.calls, self._reader
        assert calls is not None
        assert reader is not None
        self._leave("", State.TEXT, self._tags.text_later, self._tags.tail if closed else "")
        self._reader = None
        body = "".join(self._body)
        events, status = reader.close(closed)
        self._out += events
        if status is Status.MALFORMED:
            self.attempts.append(Attempt(status, -1, body))
            begin = "" if calls.bare else calls.begin
            self._speak(self._call_lead + begin + body + (calls.end if closed else ""))
            return
        self.attempts.append(Attempt(status if closed else Status.UNCLOSED, self._calls, body))
        self._calls += 1
