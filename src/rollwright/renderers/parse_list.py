"""The parser of formats that write all calls of a turn as one list: one reader tells several calls."""

from __future__ import annotations

from .engine import TokenEngine
from .families.calls_list import ListReader
from .families.table import Family
from .parse import PushParser, State
from .tags import Tags


def tags_of(family: Family, engine: TokenEngine) -> Tags:
    """One per engine, which is as long-lived as engines are."""
    known = _known.setdefault(engine, {})
    return known.get(family.name) or known.setdefault(family.name, Tags(family, engine))


_known: dict[TokenEngine, dict[str, Tags]] = {}


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
