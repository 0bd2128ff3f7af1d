"""The parser of formats that write all calls of a turn as one list: one reader tells several calls."""

from __future__ import annotations

from functools import lru_cache

from .engine import TokenEngine
from .families.calls_list import ListReader
from .families.table import Family
from .parse import PushParser, State
from .tags import Tags


@lru_cache(maxsize=64)
def tags_of(family: Family, engine: TokenEngine) -> Tags:
    return Tags(family, engine)


class ListParser(PushParser):
    """Text, then a list of calls up to the end of the answer."""

    def _close_call(self, closed: bool) -> None:
        reader = self._reader
        assert isinstance(reader, ListReader)
        self._leave("", State.TEXT, self._tags.text_later, "")
        self._reader = None
        events, _ = reader.close(closed)
        self._out += events
        self.attempts += reader.attempts
        self._calls += reader.count
        self._speak(reader.rest)
