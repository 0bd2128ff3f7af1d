"""What the broker's launcher and the Ray driver say to one another: JSON, one message a line.

launcher -> driver   Want, Start, Kill
driver -> launcher   Ended, State, Spent
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import msgspec

from rollwright.serve.launching import WorkerOrder

MAX_LINE_BYTES = 4 * 2**20


class Said(msgspec.Struct, frozen=True, tag=True):
    """One message."""


class Want(Said, frozen=True):
    workers: int


class Start(Said, frozen=True):
    order: WorkerOrder


class Kill(Said, frozen=True):
    slot: int
    life: int


class Ended(Said, frozen=True):
    slot: int
    life: int
    words: str


class State(Said, frozen=True):
    """Said several times a second, so that silence means something."""

    room: int
    started: int
    """How many `Start`s had come when this was said."""
    computing: tuple[tuple[int, int], ...] = ()


class Spent(Said, frozen=True):
    """There will never be room again."""

    why: str


ToDriver = Want | Start | Kill
FromDriver = Ended | State | Spent


class Lines:
    """The messages in a pipe, read without waiting."""

    def __init__(self, descriptor: int, kind: Any) -> None:
        self._descriptor = descriptor
        self._decoder = msgspec.json.Decoder(kind)
        self._rest = b""
        self.ended = False
        os.set_blocking(descriptor, False)

    def read(self) -> list[Any]:
        """What came since. `ended` tells that nothing more will; so does a line that is too long to be one of ours."""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._descriptor, 65536):
                self._rest += chunk
                if len(self._rest) > MAX_LINE_BYTES:
                    break
            self.ended = True
        *lines, self._rest = self._rest.split(b"\n")
        return [self._decoder.decode(line) for line in lines if line]


def line(said: Said) -> bytes:
    return msgspec.json.encode(said) + b"\n"
