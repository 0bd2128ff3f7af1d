"""Parallel tool calls, one after another. Our events may interleave the deltas of several calls; dialects whose streams
are made of blocks may not."""

from __future__ import annotations

from rollwright.wire import ToolCallDelta, WireError

from .jsontext import json_object


class ToolOrder:
    """Lets the deltas of one call through at a time. Another call waits until the open one is a whole JSON object, to
    which nothing can be added, or until `flush`. Engines that finish one call before the next one lose no time."""

    def __init__(self) -> None:
        self._open: int | None = None
        self._arguments: list[str] = []
        self._waiting: dict[int, list[ToolCallDelta]] = {}
        self._closed: set[int] = set()

    def push(self, delta: ToolCallDelta) -> list[ToolCallDelta]:
        """What may be written now."""
        if delta.index in self._closed:
            raise WireError(f"tool call {delta.index} goes on after its arguments were complete")
        if self._open is None:
            self._open = delta.index
        if delta.index == self._open:
            self._arguments.append(delta.arguments)
            return [delta, *(self._advance() if self._waiting else ())]
        first_to_wait = not self._waiting
        self._waiting.setdefault(delta.index, []).append(delta)
        return self._advance() if first_to_wait else []

    def flush(self) -> list[ToolCallDelta]:
        """All that waits, because no more tool calls come before something else."""
        out: list[ToolCallDelta] = []
        while self._waiting:
            out += self._next()
        if self._open is not None:
            self._close()
        return out

    def _advance(self) -> list[ToolCallDelta]:
        out: list[ToolCallDelta] = []
        while self._waiting and json_object("".join(self._arguments)):
            out += self._next()
        return out

    def _next(self) -> list[ToolCallDelta]:
        self._close()
        self._open = next(iter(self._waiting))
        deltas = self._waiting.pop(self._open)
        self._arguments = [delta.arguments for delta in deltas]
        return deltas

    def _close(self) -> None:
        if self._open is not None:
            self._closed.add(self._open)
        self._open = None
        self._arguments = []
