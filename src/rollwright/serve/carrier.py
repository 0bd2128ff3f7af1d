"""A ZMQ socket on an event loop. Messages that came are handed over as soon as the loop turns; sending never waits.

The socket is read directly, not through zmq.asyncio, which makes a future for every message. Its descriptor signals
edges: one wake-up may stand for any number of messages, and one that came while we were sending makes no signal at
all. So every wake-up and every send looks for more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from .protocol import Envelope, pack

AT_ONCE = 64
"""Messages handed over per turn of the loop; the rest waits for the next one, so that timers have theirs."""

Handler = Callable[[Sequence[zmq.Frame]], None]


class Carrier:
    """Owns the socket from here on. Must be made on the loop it serves."""

    def __init__(self, socket: zmq.Socket[bytes], handle: Handler) -> None:
        self._socket = socket
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._looking = False
        self._closed = False
        self._loop.add_reader(socket.FD, self._drain)
        self._look_again()

    def send(self, envelope: Envelope, frames: Sequence[Any] = ()) -> None:
        """Queue a message. Memory of the frames must not change until they were sent."""
        if self._closed:
            return
        self._socket.send_multipart([pack(envelope), *frames], zmq.NOBLOCK, copy=False)
        self._look_again()

    def close(self, linger_ms: int = 0) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._socket.FD)
            self._socket.close(linger=linger_ms)

    def _look_again(self) -> None:
        if not self._looking:
            self._looking = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._looking = False
        for _ in range(AT_ONCE):
            if self._closed:
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._handle(frames)
        self._look_again()
