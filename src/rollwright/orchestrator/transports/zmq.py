"""Batches over a socket: the orchestrator writes them as files, and a thread of its own hands their bytes to a trainer.

The files are what is sent again after a crash of either side; the socket only carries. Chunks go from the page cache to
libzmq without a copy of ours. How much is on its way is bounded by what a trainer asks for at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path

import zmq

from rollwright.wire import UsageError

from .contract import Window
from .depot import Depot
from .desk import Desk
from .directory import DepotSender
from .keys import Keys, keys_in

_log = logging.getLogger(__name__)
_POLL_MS = 100
_MAX_LETTER_BYTES = 4096
_MAX_ANSWERS = 64
"""On their way to one trainer, each with a chunk mapped at most."""
_CLOSE_WITHIN_S = 5.0
_LAST_WORDS_MS = 1000
HEARTBEAT_MS, SILENCE_MS = 2000, 30_000
"""A peer whose machine is gone is let go after this silence."""


class ZmqSender(DepotSender):
    """Batches for trainers that connect to `address` with `key`. Unacked batches wait as files of `directory`."""

    def __init__(
        self,
        directory: Path | str,
        bind: str = "tcp://127.0.0.1:*",
        *,
        window: Window | None = None,
        keep_batches: int = 0,
        sync: bool = True,
        timeout_s: float = 3600.0,
    ) -> None:
        directory = Path(directory)
        depot = Depot(directory, keep_batches=keep_batches, sync=sync)
        super().__init__(depot, window=window or Window(batches=8, bytes=64 * 2**30), timeout_s=timeout_s)
        keys = None if bind.startswith("ipc://") else keys_in(directory)
        self.key = keys.for_trainer if keys else ""
        """What a trainer needs to be let in; empty where the socket is a file."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = _bound(self._context, bind, keys)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._desk = Desk(depot, keys.token if keys else "")
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="batch sender", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<ZmqSender at {self.address}: {self._depot!r}>"

    async def close(self) -> None:
        """What is unacked stays on disk, for a later sender of the same directory."""
        self._closing.set()
        await asyncio.to_thread(self._thread.join, _CLOSE_WITHIN_S)

    def _serve(self) -> None:
        try:
            while not self._closing.is_set():
                if self._socket.poll(_POLL_MS):
                    self._answer_one()
        finally:
            # A trainer that was the reason to close waits for the answer to its last ack.
            self._socket.close(linger=_LAST_WORDS_MS)
            self._context.term()

    def _answer_one(self) -> None:
        peer, *frames = self._socket.recv_multipart()
        try:
            answer = self._desk.answer(frames[0] if len(frames) == 1 else b"")
            self._socket.send_multipart([peer, *answer], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            # The trainer is gone or does not read; it asks again when it is back.
            _log.debug("no answer to a trainer: %s", error)
        except OSError as error:
            # The trainer asks again, and the disk may be better then. The thread must live for the others.
            _log.warning("a trainer could not be answered: %s", error)


def _bound(context: zmq.Context[zmq.Socket[bytes]], end: str, keys: Keys | None) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    # Whoever is not let in yet can make us read no more than a letter.
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_LETTER_BYTES)
    # A trainer has a few letters on their way. One that asks and never reads is answered no further: the send says so.
    socket.setsockopt(zmq.SNDHWM, _MAX_ANSWERS)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
    if keys is not None:
        socket.curve_secretkey = keys.secret.encode()
        socket.curve_publickey = keys.public.encode()
        socket.curve_server = True
    try:
        socket.bind(end)
    except zmq.ZMQError as error:
        context.destroy(linger=0)
        raise UsageError(f"cannot listen for trainers at {end}: {error}; name another address") from error
    if end.startswith("ipc://"):
        os.chmod(end.removeprefix("ipc://"), 0o600)
    return socket
