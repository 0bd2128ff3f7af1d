"""The push parser of gpt-oss: messages with a header that names channel and recipient. Reasoning is what goes to the
analysis channel, a call what goes to a recipient, and all else is text. Tags are tokens, so their spelling is text."""

from __future__ import annotations

import codecs
import re

from rollwright.wire import Delta, End, Event, Finish, ReasoningDelta, TextDelta, ToolCallDelta, WireError
from rollwright.wire.arrays import Ids

from .contract import Attempt, Status
from .engine import TokenEngine
from .families.calls_json import is_object
from .lexicon import lexicon_of
from .tape import Tape

_Decoder = codecs.getincrementaldecoder("utf-8")
_TAGS = ("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>")
_STOPS = ("<|return|>", "<|call|>", "<|endoftext|>")
_TO = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")


class HarmonyParser:
    """Reads one answer. The prompt has begun the header of its first message."""

    def __init__(self, engine: TokenEngine, tape: Tape) -> None:
        self._tags = {engine.specials[tag]: tag for tag in {*_TAGS, *_STOPS} if tag in engine.specials}
        self._bytes_of = lexicon_of(engine, r"\s+").bytes_of
        self._tape = tape
        self._decoder = _Decoder("replace")
        # The header so far; None inside of a message's words.
        self._header: str | None = ""
        self._channel = ""
        self._called: list[str] | None = None
        self._calls = 0
        self._stopped = False
        self._out: list[Delta] = []
        self.attempts: list[Attempt] = []

    def feed(self, ids: Ids) -> list[Delta]:
        out: list[Delta] = []
        self._out = out
        held: list[bytes] = []
        for id in ids.tolist():
            if self._stopped:
                raise WireError("a token came after the end of the answer")
            tag = self._tags.get(id)
            if tag is None:
                held.append(self._bytes_of(id))
                continue
            self._take(self._decoder.decode(b"".join(held), final=True))
            self._decoder.reset()
            held = []
            self._take_tag(tag)
        if held:
            self._take(self._decoder.decode(b"".join(held)))
        return out

    def end(self, *, cut: bool = False) -> list[Event]:
        self._out = []
        self._take(self._decoder.decode(b"", final=True))
        self._close(closed=False)
        finish = Finish.TOOL_CALLS if self._calls else Finish.STOP
        return [*self._out, End(Finish.LENGTH if cut and not self._stopped else finish)]

    def _take_tag(self, tag: str) -> None:
        if tag in _STOPS or tag == "<|end|>":
            self._close(closed=True)
            self._stopped = tag in _STOPS
        elif tag == "<|start|>":
            self._close(closed=False)
        elif self._header is None:
            self._take(tag)
        elif tag == "<|message|>":
            self._open(self._header)
        else:
            self._header += tag

    def _open(self, header: str) -> None:
        self._header = None
        found = re.search(r"<\|channel\|>\s*(\w*)", header)
        self._channel = found[1] if found else ""
        to = _TO.search(header)
        if to is not None and to[1] != "assistant":
            self._called = []
            self._out.append(ToolCallDelta(self._calls, "", f"call_{self._tape.messages}_{self._calls}", to[1]))

    def _close(self, closed: bool) -> None:
        """A message is over. A header that never came to its words is kept as text."""
        if self._called is not None:
            text = "".join(self._called)
            status = Status.OK if is_object(text) else Status.BAD_ARGUMENTS
            self.attempts.append(Attempt(status if closed else Status.UNCLOSED, self._calls, text))
            self._calls += 1
            self._called = None
        elif self._header and self._header.strip() != "assistant":
            self._out.append(TextDelta(self._header))
        self._header = ""

    def _take(self, text: str) -> None:
        if not text:
            return
        if self._header is not None:
            self._header += text
        elif self._called is not None:
            self._called.append(text)
            self._out.append(ToolCallDelta(self._calls, text))
        elif self._channel == "analysis":
            self._out.append(ReasoningDelta(text))
        else:
            self._out.append(TextDelta(text))
