"""A stream of ids, read as events: each piece goes through the parser of its call, and the end carries the tokens."""

from __future__ import annotations

import msgspec
import numpy as np

from rollwright.dialects.sse import SseReader
from rollwright.renderers.contract import Parser
from rollwright.wire import End, Event, Finish, WireError

from .wire import Gatherer

_DONE = b"[DONE]"


class TokenStreamReader:
    """The reader of one attempt. Its `End` has tokens as they came: see `wire` for what is missing in them."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self._sse = SseReader()
        self._gatherer = Gatherer()
        self._ended = False

    def feed(self, chunk: bytes) -> list[Event]:
        events: list[Event] = []
        for payload in self._sse.feed(chunk):
            if self._ended:
                raise WireError("a piece came after the end of the answer")
            if payload.strip() == _DONE:
                events += self._end()
            elif ids := self._gatherer.take(payload):
                events += self._parser.feed(np.array(ids, np.int32))
        return events

    def close(self) -> None:
        if not self._ended:
            raise WireError("the stream was cut before its end")

    def _end(self) -> list[Event]:
        finish = self._gatherer.finish
        if finish is None:
            raise WireError("the answer does not say why it ended")
        self._ended = True
        *deltas, end = self._parser.end(cut=finish is Finish.LENGTH)
        assert isinstance(end, End)
        gathered = self._gatherer
        told = {"tokens": gathered.tokens(), "model": gathered.model, "policy_version": gathered.policy_version}
        return [*deltas, msgspec.structs.replace(end, **told)]
