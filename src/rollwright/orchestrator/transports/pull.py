"""One batch on its way to a trainer, in chunks: what to ask for next, and where what comes belongs. No socket here.

A few chunks are asked for ahead of what has come, so the line is never idle and never holds more than these. Whatever
is lost is asked for again; whatever comes twice is dropped by its number.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rollwright.wire import WireError
from rollwright.wire.codec import Buffer

from .letters import Chunk

CHUNK_BYTES = 8 * 2**20
AHEAD = 4
SILENCE_S = 5.0
"""Nothing for this long, and what was asked for counts as lost."""
MAX_BATCH_BYTES = 2**38


class Part(NamedTuple):
    number: int
    offset: int
    length: int


class Pull:
    def __init__(
        self, step: int, numbers: Iterator[int], *, chunk_bytes: int = CHUNK_BYTES, ahead: int = AHEAD
    ) -> None:
        self.step = step
        self._numbers = numbers
        self._chunk_bytes = chunk_bytes
        self._ahead = ahead
        self._asked: dict[int, Part] = {}
        self._lost: list[Part] = []
        self._next = 0
        self._missing: int | None = None
        self._buffer: mmap.mmap | None = None
        self._heard_at = 0.0

    def __repr__(self) -> str:
        missing = "all" if self._missing is None else f"{self._missing} bytes"
        return f"<Pull of step {self.step}: {missing} missing, {len(self._asked)} parts on their way>"

    @property
    def on_their_way(self) -> frozenset[int]:
        """The numbers of the parts that were asked for."""
        return frozenset(self._asked)

    def asks(self, now: float) -> list[Part]:
        """What to ask for now. Whoever cannot deliver the question calls `lose`."""
        if self._asked and now - self._heard_at >= SILENCE_S:
            self.lose()
        parts: list[Part] = []
        while len(self._asked) < self._ahead and (part := self._next_part()) is not None:
            self._asked[part.number] = part
            parts.append(part)
        if parts and len(parts) == len(self._asked):
            self._heard_at = now
        return parts

    def _next_part(self) -> Part | None:
        number = next(self._numbers)
        if self._lost:
            return self._lost.pop()._replace(number=number)
        if self._buffer is None:
            # How much there is comes with the first part, so that one travels alone.
            return None if self._asked else Part(number, 0, self._chunk_bytes)
        if self._next >= len(self._buffer):
            return None
        part = Part(number, self._next, min(self._chunk_bytes, len(self._buffer) - self._next))
        self._next += part.length
        return part

    def lose(self) -> None:
        """Nothing of what was asked for will come."""
        # The first part is made anew, as long as there is nothing to put others into.
        self._lost += self._asked.values() if self._buffer is not None else ()
        self._asked.clear()

    def take(self, chunk: Chunk, payload: Buffer, now: float) -> None:
        part = self._asked.pop(chunk.number, None)
        if part is None:
            return
        self._heard_at = now
        if self._buffer is None:
            self._open(chunk.total, len(payload))
        assert self._buffer is not None
        assert self._missing is not None
        length = min(part.length, chunk.total - part.offset)
        if (chunk.step, chunk.offset, chunk.total) != (self.step, part.offset, len(self._buffer)):
            raise WireError(f"step {self.step} changed while it was on its way")
        if length < 1 or len(payload) != length:
            raise WireError(f"a chunk of {len(payload)} bytes came where {length} were asked for")
        np.frombuffer(self._buffer, np.uint8)[part.offset : part.offset + length] = np.frombuffer(payload, np.uint8)
        self._missing -= length

    def _open(self, total: int, came: int) -> None:
        if not came <= total <= MAX_BATCH_BYTES:
            raise WireError(f"a batch of {total} bytes is over the limit of {MAX_BATCH_BYTES}")
        # Pages are made as they are filled, and go back to the system with the last view.
        self._buffer = mmap.mmap(-1, total)
        self._missing = total
        self._next = min(self._chunk_bytes, total)

    @property
    def whole(self) -> bool:
        return self._missing == 0

    def bytes(self) -> memoryview:
        assert self._buffer is not None
        assert self.whole
        return memoryview(self._buffer)
