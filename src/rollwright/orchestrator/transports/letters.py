"""What a trainer asks for over a socket, and what it is answered. Msgpack maps; no socket here.

The trainer's DEALER sends letters of one frame, the orchestrator's ROUTER answers each with one of one or two frames:

    hello(number, token)                        -> standing
    ack(number, token, step)                    -> standing, when the ack is on record
    publish(number, token, version, path)       -> standing, when the policy version is on record
    fetch(number, token, step, offset, length)  -> chunk, and a second frame of bytes from `offset` on; or standing, if
                                                   the step is not there yet; or refused, if it is gone
    standing(number, acked, last)                  newest acked and newest sent step, 0 if there is none
    chunk(number, step, offset, total)             the second frame holds min(length, total - offset) bytes of the
                                                   batch, which has `total` bytes in all
    refused(number, reason)                        "token": not let in; "gone": acked and removed; "malformed"

"type" in the map tells which one it is. `number` is the trainer's own; the answer repeats it. The orchestrator
remembers nothing of a trainer between two letters, so each may be asked again, and either side may be restarted in
between.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec

from rollwright.wire import WireError
from rollwright.wire.codec import Buffer

MAX_CHUNK_BYTES = 32 * 2**20


class _Letter(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower, forbid_unknown_fields=True):
    number: int


class Hello(_Letter, frozen=True):
    token: str


class Ack(_Letter, frozen=True):
    token: str
    step: int


class Publish(_Letter, frozen=True):
    token: str
    version: int
    path: str


class Fetch(_Letter, frozen=True):
    token: str
    step: int
    offset: int
    length: int


class Standing(_Letter, frozen=True):
    acked: int
    last: int


class Chunk(_Letter, frozen=True):
    step: int
    offset: int
    total: int


class Refused(_Letter, frozen=True):
    reason: Literal["token", "gone", "malformed"]


Request = Hello | Ack | Publish | Fetch
Answer = Standing | Chunk | Refused
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def write_letter(letter: Request | Answer) -> bytes:
    return msgspec.msgpack.encode(letter)


def read_request(frame: Buffer) -> Request:
    with _translated():
        return _requests.decode(frame)


def read_answer(frame: Buffer) -> Answer:
    with _translated():
        return _answers.decode(frame)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (msgspec.DecodeError, ValueError) as error:
        raise WireError(f"not a letter of ours: {error}") from error
