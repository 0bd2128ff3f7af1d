"""The broker's letters, gathered per peer until the moment's work is done, then sent as bundles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq

from .bundles import Bundle
from .ledger import Peer
from .protocol import Envelope

_UNREACHABLE = (zmq.EHOSTUNREACH, zmq.EAGAIN)
Line = tuple[zmq.Socket[bytes], Peer]


class Post:
    def __init__(self) -> None:
        self._due: dict[Line, Bundle] = {}
        self._unreachable: dict[Line, None] = {}

    def put(self, socket: zmq.Socket[bytes], peer: Peer, envelope: Envelope, frames: Sequence[Any] = ()) -> None:
        """Letters to one peer arrive in this order."""
        bundle = self._due.get((socket, peer))
        if bundle is None:
            bundle = self._due[socket, peer] = Bundle()
        bundle.add(envelope, frames)
        if bundle.full:
            self._send((socket, peer), bundle)

    def flush(self) -> list[Line]:
        """Send everything. Returns those whom nobody can reach any more, each once; what was meant for them is gone."""
        due, self._due = self._due, {}
        for line, bundle in due.items():
            if bundle:
                self._send(line, bundle)
        unreachable, self._unreachable = list(self._unreachable), {}
        return unreachable

    def _send(self, line: Line, bundle: Bundle) -> None:
        socket, peer = line
        try:
            socket.send_multipart([peer, *bundle.take()], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in _UNREACHABLE:
                raise
            self._unreachable[line] = None
