"""The broker's words and those of its workers, on stderr. Nobody here ever waits for somebody to read them."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence

BUDGET_BYTES = 256 * 1024


class Voice:
    """A stream for `logging`, and the place for the lines of others. What finds no reader is kept up to BUDGET_BYTES;
    beyond it lines are dropped, and their number is told to the next one who reads."""

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)
        self._unsaid = bytearray()
        self._dropped = 0

    def __repr__(self) -> str:
        return f"<Voice {len(self._unsaid)} bytes unsaid, {self._dropped} lines dropped>"

    def say(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            self._add(line + b"\n")
        self.flush()

    def write(self, text: str) -> None:
        """One or more whole lines, as `logging` writes them."""
        self._add(text.encode("utf-8", "replace"))

    def flush(self) -> None:
        """Say what finds room now."""
        while self._unsaid and self._room.poll(0):
            # Where a pipe has room at all, it takes so much at once without a wait.
            piece = bytes(self._unsaid[: select.PIPE_BUF])
            try:
                written = os.write(self._descriptor, piece)
            except BlockingIOError:
                return
            except OSError:  # Nobody will ever read it.
                written = len(self._unsaid)
            del self._unsaid[:written]
            self._confess()

    def _add(self, data: bytes) -> None:
        if len(self._unsaid) + len(data) > BUDGET_BYTES:
            self._dropped += data.count(b"\n")
        else:
            self._unsaid += data

    def _confess(self) -> None:
        if self._dropped and not self._unsaid:
            dropped, self._dropped = self._dropped, 0
            self._unsaid += f"({dropped} lines are missing here: nobody read them in time)\n".encode()
