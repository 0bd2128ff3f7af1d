"""What the stream readers of all dialects share: payloads are read until the end, and a missing end is told."""

from __future__ import annotations

from abc import ABC, abstractmethod

from rollwright.wire import Event, WireError

from .sse import SseReader


class SseStreamReader(ABC):
    """A StreamReader whose bytes are server-sent events. What comes after the end is not read."""

    def __init__(self) -> None:
        self._sse = SseReader()
        self._ended = False

    def feed(self, chunk: bytes) -> list[Event]:
        events: list[Event] = []
        for payload in self._sse.feed(chunk):
            if self._ended:
                break
            self._read(payload, events)
        return events

    def close(self) -> None:
        if not self._ended:
            raise WireError("the stream was cut before its end")

    @abstractmethod
    def _read(self, payload: bytes, events: list[Event]) -> None:
        """Append what one payload says. Whoever appends `End` sets `_ended`."""
