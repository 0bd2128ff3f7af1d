"""Who asked for what, who holds it, and what happens to it next. No socket, no clock, no process.

Each function changes the books and returns what remains to be done as `Letter`s to clients and workers. A request is
always in one place: in the queue, or held by one worker under a ticket. It leaves the books exactly once, with a last
`Part`, `Done` or `Failed` to its client, or silently when its client is gone. Whatever comes back under a ticket that
is no longer the request's own is dropped and counted.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from .berths import Berths
from .deadlines import Deadlines
from .ledger import Bounds, Frames, Letter, Peer, Request, Seat
from .protocol import Done, Drop, Failed, Part, Run, Submit, Trouble, Voided, Withdraw
from .waiting import Waiting


class Books:
    def __init__(self, bounds: Bounds = Bounds()) -> None:  # noqa: B008 - frozen
        self.bounds = bounds
        self.counts: Counter[str] = Counter()
        self._waiting = Waiting(bounds.reply_bytes)
        self._places: dict[Peer, str] = {}
        self._bytes = 0
        self._requests: dict[tuple[Peer, int], Request] = {}
        self._by_client: dict[Peer, dict[int, Request]] = {}
        self._weights: Counter[Peer] = Counter()
        self._seats: dict[Peer, Seat] = {}
        self._berths: Berths[Seat] = Berths()
        self._deadlines: Deadlines[Request] = Deadlines()
        self._next_ticket = 0
        self.failing = ""
        """Why nothing is taken any more; empty while all is well."""

    def __repr__(self) -> str:
        held = sum(len(seat.held) for seat in self._seats.values())
        return f"<Books {len(self._waiting)} queued, {held} held by {len(self._seats)} workers>"

    # Clients

    def client_came(self, client: Peer, place: str = "", budget_bytes: int = 0) -> None:
        """A client has greeted us. What it may have untaken is no more than it says itself."""
        self._places[client] = place
        self._waiting.untaken.bind(client, budget_bytes)

    def submit(self, client: Peer, asked: Submit, frames: Frames, now: float) -> list[Letter]:
        size = sum(len(frame) for frame in frames)
        reason = self._objection(client, asked, size)
        if reason is not None:
            self.counts["refused"] += 1
            return [Letter(client, Failed(asked.request, *reason))]
        request = Request(client, asked, frames, now + asked.timeout_s, size)
        self._bytes += size
        self._requests[client, asked.request] = request
        self._by_client.setdefault(client, {})[asked.request] = request
        self._weights[client] += asked.rollouts
        self.counts["submitted"] += 1
        self._deadlines.add(request)
        self._waiting.add(request)
        return self.place(now)

    def _objection(self, client: Peer, asked: Submit, size: int) -> tuple[Trouble, str] | None:
        if self.failing:
            return Trouble.NO_WORKERS, self.failing
        if (client, asked.request) in self._requests:
            return Trouble.REFUSED, f"request {asked.request} is already here; a number names one request"
        if asked.rollouts < 1 or not asked.timeout_s > 0:
            return Trouble.REFUSED, "a request needs at least one rollout and a deadline in the future"
        if asked.rollouts > min(self.bounds.window, self.bounds.queue):
            most = min(self.bounds.window, self.bounds.queue)
            return Trouble.REFUSED, f"it has {asked.rollouts} rollouts and {most} may be here at once; raise the window"
        if size > self.bounds.queue_bytes:
            return Trouble.REFUSED, f"it has {size} bytes, and {self.bounds.queue_bytes} may be here; raise queue_bytes"
        if self._weights[client] + asked.rollouts > self.bounds.window:
            return Trouble.OVERLOADED, f"the window of {self.bounds.window} rollouts is full"
        if self._waiting.rollouts + asked.rollouts > self.bounds.queue:
            return Trouble.OVERLOADED, f"{self._waiting.rollouts} rollouts are waiting, and {self.bounds.queue} may"
        if self._bytes + size > self.bounds.queue_bytes:
            return Trouble.OVERLOADED, f"requests hold {self._bytes} bytes, and {self.bounds.queue_bytes} may"
        return None

    def cancel(self, client: Peer, number: int) -> list[Letter]:
        """The client no longer wants it. It hears so, unless the answer is on its way already."""
        request = self._requests.get((client, number))
        if request is None:
            return []
        return self._end(request, Failed(number, Trouble.CANCELLED, f"{request.asked.label} was cancelled"))

    def withdraw(self, client: Peer, number: int, position: int) -> list[Letter]:
        """One rollout of a request is not wanted any more. Its trace, which says so, comes like any other."""
        request = self._requests.get((client, number))
        if request is None or not 0 <= position < request.asked.rollouts or position in request.arrived:
            return []
        request.withdrawn.add(position)
        return [self._withdrawal(request, position)] if request.holder is not None else []

    def _withdrawal(self, request: Request, position: int) -> Letter:
        assert request.holder is not None
        return Letter(request.holder, Withdraw(request.ticket, position), to_worker=True)

    def cancel_labelled(self, label: str) -> list[Letter]:
        """End every request with this label, or every request if it is empty."""
        chosen = [key for key, request in self._requests.items() if label in ("", request.asked.label)]
        return [letter for client, number in chosen for letter in self.cancel(client, number)]

    def client_gone(self, client: Peer) -> list[Letter]:
        letters: list[Letter] = []
        for request in list(self._by_client.get(client, {}).values()):
            letters += self._end(request, None)
        self._waiting.forget(client)
        self._places.pop(client, None)
        return letters

    def has_taken(self, client: Peer, read: int, taken: int, now: float) -> list[Letter]:
        """The client has read so many bytes of results in all, and its caller has taken so many. One that has caught up
        has its turn again."""
        return self.place(now) if self._waiting.caught_up(client, read, taken) else []

    def _deliver(self, client: Peer, answer: Part | Done, frames: Frames) -> Letter:
        laid = answer.laid.size if answer.laid is not None else 0
        self._waiting.sent(client, sum(len(frame) for frame in frames) + laid)
        return Letter(client, answer, frames)

    def expire(self, now: float) -> list[Letter]:
        """End what is past its deadline."""
        letters: list[Letter] = []
        for request in self._deadlines.due(now, len(self._requests)):
            words = f"{request.asked.label} took longer than {request.asked.timeout_s:g} s"
            letters += self._end(request, Failed(request.asked.request, Trouble.TIMED_OUT, words))
        return letters

    # Workers

    def seat(self, peer: Peer, capacity: int, now: float, place: str = "") -> list[Letter]:
        """A worker has proven that it works."""
        self._seats[peer] = seat = Seat(peer, capacity, place)
        self._berths.add(seat)
        return self.place(now)

    def open_seat(self, peer: Peer, open: bool, now: float) -> list[Letter]:
        """Whether it may be given more; what it holds goes on either way."""
        if peer in self._seats:
            self._seats[peer].open = open
            self._berths.roomier(self._seats[peer])
        return self.place(now) if open else []

    def take_back(self, peer: Peer, begun: int, now: float) -> list[Letter]:
        """The loop of a worker stands still, and has begun nothing above this ticket: what is on its way to it goes to
        others. Its loop may still turn before it hears so; then it drops what it has begun, and what it answers is
        late. So a request that may run only once stays."""
        seat = self._seats.get(peer)
        chosen = (
            [] if seat is None else [one for ticket, one in seat.held.items() if ticket > begun and one.asked.retry]
        )
        letters: list[Letter] = []
        for request in reversed(chosen):
            letters.append(self._off_its_worker(request))
            self._waiting.add(request, ahead=True)
        self.counts["taken_back"] += len(chosen)
        return letters + self.place(now)

    def _off_its_worker(self, request: Request) -> Letter:
        assert request.holder is not None
        seat, ticket = self._seats[request.holder], request.ticket
        del seat.held[ticket]
        seat.load -= request.weight
        self._berths.roomier(seat)
        request.holder, request.ticket = None, -1
        return Letter(seat.peer, Drop(ticket), to_worker=True)

    def load_of(self, peer: Peer) -> int:
        seat = self._seats.get(peer)
        return seat.load if seat is not None else 0

    def worker_lost(self, peer: Peer, why: str, now: float) -> list[Letter]:
        """It is dead, with all it held."""
        seat = self._seats.pop(peer, None)
        if seat is None:
            return []
        seat.open = False
        self._berths.remove(seat)
        letters: list[Letter] = []
        # Backwards, because each is put at the head of the queue: the oldest is then the first again.
        for request in reversed(list(seat.held.values())):
            letters += self._crashed(request, why)
        return letters + self.place(now)

    def _crashed(self, request: Request, why: str) -> list[Letter]:
        asked = request.asked
        request.crashes += 1
        request.holder, request.ticket = None, -1
        if asked.retry and request.crashes <= self.bounds.redispatches:
            self.counts["redispatched"] += 1
            return self._again(request)
        if not asked.retry or not self.bounds.redispatches:
            words = f"{asked.label} was lost: {why}"
            return self._end(request, Failed(asked.request, Trouble.WORKER_LOST, words))
        self.counts["poison"] += 1
        words = f"{asked.label} was held by {request.crashes} workers when they died; the last: {why}"
        return self._end(request, Failed(asked.request, Trouble.POISON, words))

    def _again(self, request: Request) -> list[Letter]:
        voided = request.asked.together and bool(request.arrived)
        if voided:
            request.arrived.clear()
        self._waiting.add(request, ahead=True)
        return [Letter(request.client, Voided(request.asked.request))] if voided else []

    def result(self, peer: Peer, said: Part | Done | Failed, frames: Frames, now: float) -> list[Letter]:
        """What a worker answers under a ticket; `said.request` is that ticket."""
        seat = self._seats.get(peer)
        request = seat.held.get(said.request) if seat is not None else None
        if seat is None or request is None:
            self.counts["late"] += 1
            return []
        number = request.asked.request
        if isinstance(said, Part):
            if said.position in request.arrived or not 0 <= said.position < request.asked.rollouts:
                self.counts["late"] += 1
                return []
            request.arrived.add(said.position)
            seat.load -= 1
            self._berths.roomier(seat)
            part = Part(number, said.position, said.last, said.laid)
            if said.last:
                return [*self._end(request, part, frames), *self.place(now)]
            return [self._deliver(request.client, part, frames), *self.place(now)]
        if isinstance(said, Done):
            return [*self._end(request, Done(number, said.laid), frames), *self.place(now)]
        return [*self._end(request, Failed(number, said.trouble, said.message)), *self.place(now)]

    # Placement

    def place(self, now: float) -> list[Letter]:
        """Give what waits to those who have room, the oldest first."""
        letters: list[Letter] = []
        while (request := self._waiting.first()) is not None:
            seat = self._berths.roomiest(request.weight)
            if seat is None:
                break
            self._waiting.remove(request)
            letters.append(self._hand_over(request, seat, now))
            letters += [self._withdrawal(request, position) for position in sorted(request.withdrawn)]
        return letters

    def _hand_over(self, request: Request, seat: Seat, now: float) -> Letter:
        self._next_ticket += 1
        request.ticket, request.holder = self._next_ticket, seat.peer
        seat.held[request.ticket] = request
        seat.load += request.weight
        self.counts["dispatched"] += 1
        near = bool(seat.place) and seat.place == self._places.get(request.client)
        run = Run(request.ticket, max(request.expires - now, 0.0), tuple(sorted(request.arrived)), near)
        return Letter(seat.peer, run, request.frames, to_worker=True)

    # Endings

    def fail_all(self, why: str) -> list[Letter]:
        """Nothing can run here any more: everything ends now, and nothing more is taken."""
        self.failing = why
        letters: list[Letter] = []
        for request in list(self._requests.values()):
            letters += self._end(request, Failed(request.asked.request, Trouble.NO_WORKERS, why))
        return letters

    def _end(self, request: Request, last: Part | Done | Failed | None, frames: Frames = ()) -> list[Letter]:
        """Take a request off the books, and off its worker if it still runs there."""
        letters: list[Letter] = []
        if request.holder is not None:
            drop = self._off_its_worker(request)
            if not isinstance(last, Part | Done):
                letters.append(drop)
        self._waiting.remove(request)
        request.over, request.frames = True, ()
        self._bytes -= request.size
        client, number = request.client, request.asked.request
        del self._requests[client, number]
        del self._by_client[client][number]
        self._weights[client] -= request.asked.rollouts
        if not self._by_client[client]:
            del self._by_client[client], self._weights[client]
        self.counts[_outcome(last)] += 1
        if isinstance(last, Part | Done):
            letters.append(self._deliver(client, last, frames))
        elif last is not None:
            letters.append(Letter(client, last))
        return letters

    def status(self) -> dict[str, Any]:
        return {
            "queued_requests": len(self._waiting),
            "queued_rollouts": self._waiting.rollouts,
            "requests": len(self._requests),
            "request_bytes": self._bytes,
            "request_budget_bytes": self.bounds.queue_bytes,
            "unread_bytes": len(self._waiting.unread),
            "untaken_bytes": len(self._waiting.untaken),
            "slow_clients": self._waiting.slow_clients,
            "clients": len(self._by_client),
            "counts": dict(self.counts),
        }


def _outcome(last: Part | Done | Failed | None) -> str:
    if isinstance(last, Failed):
        return last.trouble.value
    return "done" if last is not None else "abandoned"
