"""Many messages as one. Every message that a socket carries costs two threads and several system calls, however small
it is, so what is due at the same moment for the same peer travels together.

A bundle is a list of envelopes, each with the frames that stand behind it. Small frames lie in the list itself; a large
one has a mark there and follows as a raw frame of its own, which is never copied. A bundle ends with the first message
that has raw frames: ZMQ hands a message over when all of it is there, and a large one should keep no other waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from rollwright.wire import WireError
from rollwright.wire.codec import Buffer

from .protocol import Envelope, FromClient, FromWorker, ToClient, ToWorker

MAX_MESSAGES = 64
"""In one bundle that we make; what a peer makes is bound by its bytes."""
SMALL_BYTES = 4096
"""Up to here a frame is copied into the list, which costs less than a frame of its own."""
LIST_BYTES = 256 * 1024
"""Of small frames in one list; what is over goes raw."""
MAX_LIST_BYTES = 4 * LIST_BYTES
"""A longer list is refused unread."""

Carried = bytes | zmq.Frame
"""A frame on its way through: one that lay in the list, or a raw one as it came."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODERS: dict[Any, msgspec.msgpack.Decoder[list[tuple[Any, list[bytes | None]]]]] = {
    kind: msgspec.msgpack.Decoder(list[tuple[kind, list[bytes | None]]])  # type: ignore[valid-type]
    for kind in (FromClient, ToClient, ToWorker, FromWorker)
}


class Bundle:
    """What is due for one peer. `take` gives the frames to send and starts anew."""

    def __init__(self) -> None:
        self._start()

    def __bool__(self) -> bool:
        return bool(self._messages)

    @property
    def full(self) -> bool:
        """Whether it is to be sent before anything is added."""
        return bool(self._raw) or len(self._messages) >= MAX_MESSAGES or self._bytes >= LIST_BYTES

    def add(self, envelope: Envelope, frames: Sequence[Any] = ()) -> None:
        """The memory of raw frames must not change until they were sent."""
        self._messages.append((envelope, [self._listed(frame) for frame in frames]))

    def take(self) -> list[Any]:
        frames = [_ENCODER.encode(self._messages), *self._raw]
        self._start()
        return frames

    def _start(self) -> None:
        self._messages: list[tuple[Envelope, list[Buffer | None]]] = []
        self._raw: list[Any] = []
        self._bytes = 0

    def _listed(self, frame: Any) -> Buffer | None:
        size = len(frame)
        if isinstance(frame, zmq.Frame) or size > SMALL_BYTES or self._bytes + size > LIST_BYTES:
            self._raw.append(frame)
            return None
        self._bytes += size
        buffer: Buffer = frame
        return buffer


def open_bundle(frames: Sequence[zmq.Frame], kind: Any) -> list[tuple[Any, list[Carried]]]:
    """The messages in a bundle, each with its frames. All of them are of the kinds that this end hears, or none is
    taken: WireError."""
    if not frames:
        raise WireError("a message needs an envelope")
    if len(frames[0]) > MAX_LIST_BYTES:
        raise WireError(f"a list of {len(frames[0])} bytes is over the limit of {MAX_LIST_BYTES}")
    try:
        messages = _DECODERS[kind].decode(frames[0].buffer)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"not a message of ours: {error}") from error
    raw = iter(frames[1:])
    opened = [(envelope, [_found(frame, raw) for frame in listed]) for envelope, listed in messages]
    if next(raw, None) is not None:
        raise WireError("a message came with frames that nobody mentions")
    return opened


def _found(listed: bytes | None, raw: Any) -> Carried:
    if listed is not None:
        return listed
    frame: zmq.Frame | None = next(raw, None)
    if frame is None:
        raise WireError("a message came without the frames that it mentions")
    return frame


def buffers(frames: Sequence[Carried]) -> list[Buffer]:
    """What is in the frames."""
    return [frame.buffer if isinstance(frame, zmq.Frame) else frame for frame in frames]
