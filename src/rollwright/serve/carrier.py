"""A ZMQ socket on an event loop. Messages that came are handed over as soon as the loop turns; sending never waits.

What is sent in one turn of the loop leaves together when the turn is over. The socket is read directly, not through
zmq.asyncio, which makes a future for every message. Its descriptor signals edges: one wake-up may stand for any number
of messages, and one that came while we were sending makes no signal at all. So every wake-up and every send looks for
more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from rollwright.wire import WireError
from rollwright.wire.codec import Buffer

from .bundles import Bundle, buffers, open_bundle
from .protocol import Envelope

AT_ONCE = 32
"""Messages handed over per turn of the loop; the rest waits for the next one, so that timers have theirs. What follows
from a message, such as the next rollout of whoever waited for it, runs before that turn is over and takes longer than
handing it over."""

Handler = Callable[[Any, Sequence[Buffer]], None]


class Carrier:
    """Owns the socket from here on. Must be made on the loop it serves. `handle` gets messages of the given kind;
    `puzzled` is told why one made no sense."""

    def __init__(
        self, socket: zmq.Socket[bytes], kind: Any, handle: Handler, puzzled: Callable[[WireError], None]
    ) -> None:
        self._socket = socket
        self._kind = kind
        self._handle, self._puzzled = handle, puzzled
        self._loop = asyncio.get_running_loop()
        self._outgoing = Bundle()
        self._came: deque[tuple[Any, Sequence[Buffer]]] = deque()
        """Messages of one bundle that wait for the next turn; the socket is read again when there are none."""
        self._looking = False
        self._closed = False
        self._loop.add_reader(socket.FD, self._drain)
        self._look_again()

    def send(self, envelope: Envelope, frames: Sequence[Any] = ()) -> None:
        """Queue a message. Memory of the frames must not change until they were sent."""
        if self._closed:
            return
        self._outgoing.add(envelope, frames)
        if self._outgoing.full:
            self._flush()
        self._look_again()

    def close(self, linger_ms: int = 0) -> None:
        if not self._closed:
            self._flush()
            self._closed = True
            self._loop.remove_reader(self._socket.FD)
            self._socket.close(linger=linger_ms)

    def _flush(self) -> None:
        if self._outgoing:
            self._socket.send_multipart(self._outgoing.take(), zmq.NOBLOCK, copy=False)

    def _look_again(self) -> None:
        if not self._looking:
            self._looking = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._looking = False
        if self._closed:
            return
        self._flush()
        for _ in range(AT_ONCE):
            if not self._came and not self._receive():
                return
            if self._came:
                self._handle(*self._came.popleft())
            if self._closed:
                return
        self._look_again()

    def _receive(self) -> bool:
        """Read one bundle; False if there is none."""
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        try:
            self._came.extend((said, buffers(carried)) for said, carried in open_bundle(frames, self._kind))
        except WireError as error:
            self._puzzled(error)
        return True
