"""The tags of a family over one vocabulary, worked out once: which are tokens, which must be sought in text, and what
the format puts beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from .engine import TokenEngine
from .families.table import Calls, Family, Speech, Thinking
from .lexicon import lexicon_of

Pattern = re.Pattern[str]


class Side:
    """What leaves one state of the parser: the tags, and what the format puts before them."""

    def __init__(self, leads: Iterable[str], sought: Iterable[str], *, first: bool = False) -> None:
        tags = sorted(sought, key=len, reverse=True)
        names = "|".join(map(re.escape, tags))
        self.seek: Pattern | None = re.compile(rf"\A(?:{names})" if first else names) if tags else None
        """Tags that have no token; with `first`, only where the answer begins."""
        self._starts = {lead[:length] for lead in leads for length in range(1, len(lead) + 1)}
        for tag in tags:
            for whole in (tag, *(lead + tag for lead in leads)):
                self._starts |= {whole[:length] for length in range(1, len(whole))}
        self._lasts = frozenset(start[-1] for start in self._starts)
        self._longest = max(map(len, self._starts), default=0)

    def overlap(self, text: str) -> int:
        """How many characters at the end of `text` may belong to a tag that is still to come."""
        if not text or text[-1] not in self._lasts:
            return 0
        for length in range(min(len(text), self._longest), 0, -1):
            if text[-length:] in self._starts:
                return length
        return 0


class Tags:
    """Everything that the parser asks a table for."""

    def __init__(self, family: Family, engine: TokenEngine) -> None:
        self.thinking: Thinking | None = family.speech.thinking
        self.calls: Calls | None = family.speech.calls
        self.bytes_of = lexicon_of(engine, family.plain).bytes_of
        self.stops = frozenset(family.stops)
        think_begin, think_end = (self.thinking.begin, self.thinking.end) if self.thinking else ("", "")
        call_begin, call_end = (self.calls.begin, self.calls.end) if self.calls else ("", "")
        tags = {think_begin, think_end, call_begin, call_end} - {""}
        self.names = {engine.specials[tag]: tag for tag in tags | self.stops if tag in engine.specials}
        self.structural = np.zeros(engine.size, np.bool_)
        self.structural[list(self.names)] = True
        sought = tags - set(engine.specials)
        self.bare = self.calls is not None and self.calls.bare
        self._read_thinking()
        self._read_section(family.speech)
        self.text = Side({self.lead, self.think_lead} - {""}, sought & {think_begin, call_begin}, first=self.bare)
        # A call without tags is the whole answer, so after anything else there is none.
        later = {think_begin} if self.bare else {think_begin, call_begin}
        self.text_later = Side({self.between} - {""}, sought & later)
        self.thought = Side({self.thought_lead} - {""}, sought & {think_end})
        self.call = Side((), sought & {call_end})

    def _read_section(self, speech: Speech) -> None:
        """What stands beside the calls, and before the first and after the last of them."""
        self.lead = self.between = self.tail = ""
        if self.calls is None:
            return
        self.lead, self.between, self.tail = self.calls.lead, self.calls.between, self.calls.tail
        if speech.calls_open and not speech.calls_open.startswith(self.calls.begin):
            self.lead += speech.calls_open
            self.between = self.tail + self.between
            self.tail += speech.calls_close

    def _read_thinking(self) -> None:
        """What stands beside the tags of reasoning, from the table's `open`, `close` and `prompt`."""
        self.think_lead = self.thought_skip = self.thought_lead = self.answer_skip = self.prompt_skip = ""
        if self.thinking is None:
            return
        self.think_lead, _, self.thought_skip = self.thinking.open.partition(self.thinking.begin)
        self.thought_lead, _, self.answer_skip = self.thinking.close.partition(self.thinking.end)
        given = (self.thinking.prompt or self.thinking.resumes).partition(self.thinking.begin)[2]
        self.prompt_skip = self.thought_skip.removeprefix(given)
