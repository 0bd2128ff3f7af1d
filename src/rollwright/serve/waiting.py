"""What waits for a worker, the oldest first. Clients that must take their results first stand aside with theirs."""

from __future__ import annotations

import sys
from collections import OrderedDict

from .ledger import Peer, Request
from .unread import Unread


class Waiting:
    def __init__(self, reply_bytes: int) -> None:
        self._queue: OrderedDict[Request, None] = OrderedDict()
        self._aside: dict[Peer, dict[Request, None]] = {}
        self.unread, self.untaken = Unread(reply_bytes), Unread(sys.maxsize)
        self.rollouts = 0

    def __len__(self) -> int:
        return len(self._queue) + sum(map(len, self._aside.values()))

    @property
    def slow_clients(self) -> int:
        return len(self._aside)

    def first(self) -> Request | None:
        return next(iter(self._queue), None)

    def add(self, request: Request, *, ahead: bool = False) -> None:
        """A request that has been begun before never stands aside: its client holds parts of it, and cannot give them
        to its caller before the rest has come."""
        self.rollouts += request.weight
        if request.client in self._aside and not request.crashes:
            self._aside[request.client][request] = None
        else:
            self._queue[request] = None
            self._queue.move_to_end(request, last=not ahead)

    def remove(self, request: Request) -> None:
        """No error if it does not wait."""
        for waiting in (self._queue, self._aside.get(request.client, {})):
            if request in waiting:
                del waiting[request]
                self.rollouts -= request.weight

    def sent(self, client: Peer, size: int) -> None:
        """A client was sent so much. One that has too much stands aside with all that it has not begun."""
        over = self.unread.sent(client, size), self.untaken.sent(client, size)
        if any(over) and client not in self._aside:
            waiting = [request for request in self._queue if request.client == client and not request.crashes]
            self._aside[client] = dict.fromkeys(waiting)
            for request in waiting:
                del self._queue[request]

    def caught_up(self, client: Peer, read: int, taken: int) -> bool:
        """A client has read so many bytes in all, and its caller has taken so many. Whether it has its turn again with
        that."""
        caught_up = self.unread.read(client, read), self.untaken.read(client, taken)
        if not all(caught_up) or client not in self._aside:
            return False
        for request in self._aside.pop(client):
            self._queue[request] = None
        return True

    def forget(self, client: Peer) -> None:
        """It is gone, with all that it asked for."""
        self._aside.pop(client, None)
        self.unread.forget(client)
        self.untaken.forget(client)
