"""The broker: carries requests to workers and results to clients, and keeps the workers alive.

One thread, one plain loop over three sockets, no asyncio. It reads envelopes, asks the books and the crew what to do,
and does it. Frames behind an envelope are passed on as they came. Whatever a peer sends that is no message of ours is
answered with `Refused` and changes nothing.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import zmq

from rollwright.telemetry.lag import LagBook
from rollwright.wire import WireError

from .books import Books
from .bundles import Carried, open_bundle
from .crew import Crew
from .launching import Launcher
from .ledger import Bounds, Letter, Peer
from .orders import OrderError, Orders
from .post import Post
from .protocol import (
    VERSION,
    Ask,
    Bye,
    Cancel,
    Envelope,
    Failed,
    FromClient,
    FromWorker,
    Hello,
    Refusal,
    Refused,
    Submit,
    Tick,
    Told,
    Trouble,
    Welcome,
    Withdraw,
)
from .pulse import lag_vitals, own_vitals
from .settings import BrokerSettings
from .slots import SlotsSpent
from .wiring import Locks, bound, told_end

log = logging.getLogger("rollwright.serve")

TICK_S = 0.05
CLIENT_TICK_S = 0.5
CLIENT_SILENCE_S = 60.0
"""A client whose loop is busy says nothing; one that is silent for so long is gone."""
TURN_S = 0.004
"""How long one socket is read before the others, and the clock, have their turn."""

Hearing = Callable[[Sequence[zmq.Frame]], None]


class Broker:
    def __init__(
        self,
        settings: BrokerSettings,
        locks: Locks,
        launcher: Launcher,
        *,
        clock: Callable[[], float] = time.monotonic,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        scaled: Callable[[int], None] = lambda workers: None,
    ) -> None:
        self._settings = settings
        self._launcher = launcher
        self._clock = clock
        self._name = secrets.token_hex(8)
        self._context = context or zmq.Context(settings.io_threads if locks.secret_key else 1)
        told = locks.address
        self._front = bound(self._context, told.front, locks)
        self._back = bound(self._context, told.back, locks)
        self._pulse = bound(self._context, told.pulse, locks, pull=True)
        self.address = msgspec.structs.replace(
            told,
            front=told_end(self._front, locks, told.front),
            back=told_end(self._back, locks, told.back),
            pulse=told_end(self._pulse, locks, told.pulse),
        )
        self.books = Books(
            Bounds(settings.window, settings.queue, settings.redispatches, settings.queue_bytes, settings.reply_bytes)
        )
        self._post = Post()
        send_back = partial(self._send, self._back)
        self.crew = Crew(
            settings, self.books, launcher, self.address.encode(), clock, self._knows, send_back, self._send_all
        )
        self._orders = Orders(
            settings,
            self.books,
            self.crew.slots,
            self.crew.relieve,
            self.vitals,
            self._send_all,
            self.crew.tell_policy,
            scaled,
        )
        self._lag = LagBook(clock(), TICK_S)
        self._clients: dict[Peer, float] = {}
        self._told_state = self._state()
        self._next_tick = self._next_client_tick = 0.0
        self.closing = False

    def __repr__(self) -> str:
        return f"<Broker {len(self._clients)} clients, {self.crew.slots!r}, {self.books!r}>"

    def vitals(self) -> dict[str, float]:
        """The broker's own. Its lag is how late its loop comes round."""
        lag = self._lag.snapshot(self._clock())
        return {**own_vitals(), "clients": float(len(self._clients)), **lag_vitals(lag)}

    def run(self) -> None:
        """Until `closing` is set, which a signal handler may do."""
        poller = zmq.Poller()
        sockets: list[tuple[zmq.Socket[bytes], Hearing]] = [
            (self._pulse, self.crew.on_pulse),
            (self._back, self._on_workers),
            (self._front, self._on_clients),
        ]
        for socket, _ in sockets:
            poller.register(socket, zmq.POLLIN)
        while not self.closing:
            readable = dict(poller.poll(int(max(self._next_tick - self._clock(), 0.0) * 1000) + 1))
            for socket, handle in sockets:
                if socket in readable:
                    self._drain(socket, handle)
                    self._deliver()
            if self._clock() >= self._next_tick:
                self._tick()
                self._deliver()

    def close(self) -> None:
        self._send_all(self.books.fail_all("the server was closed"))
        self._deliver()
        self._launcher.close()
        for socket in (self._front, self._back, self._pulse):
            socket.close(linger=500)
        self._context.term()

    def _drain(self, socket: zmq.Socket[bytes], handle: Hearing) -> None:
        until = self._clock() + TURN_S
        while self._clock() < until:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            handle(frames)

    # Clients

    def _on_clients(self, frames: Sequence[zmq.Frame]) -> None:
        peer = frames[0].bytes
        try:
            messages = open_bundle(frames[1:], FromClient)
        except WireError as error:
            self._send(self._front, peer, Refused(Refusal.UNREADABLE, str(error)))
            return
        for said, carried in messages:
            self._client_said(peer, said, carried)

    def _client_said(self, peer: Peer, said: Any, frames: Sequence[Carried]) -> None:
        if isinstance(said, Hello):
            self._welcome(peer, said)
        elif peer not in self._clients:
            self._send(self._front, peer, Refused(Refusal.STRANGER, "say hello first"))
        elif isinstance(said, Submit):
            self._submit(peer, said, frames)
        elif isinstance(said, Tick):
            self._send_all(self.books.has_taken(peer, said.read_bytes, said.taken_bytes, self._clock()))
        elif isinstance(said, Cancel):
            self._send_all(self.books.cancel(peer, said.request))
        elif isinstance(said, Withdraw):
            self._send_all(self.books.withdraw(peer, said.request, said.position))
        elif isinstance(said, Ask):
            self._answer(peer, said)
        elif isinstance(said, Bye):
            self._client_gone(peer)
        if peer in self._clients:
            self._clients[peer] = self._clock()

    def _welcome(self, peer: Peer, hello: Hello) -> None:
        if not self._knows(hello.token):
            self._send(self._front, peer, Refused(Refusal.TURNED_AWAY, "the token is not this server's"))
        elif hello.version != VERSION:
            words = f"this server speaks version {VERSION}, not {hello.version}"
            self._send(self._front, peer, Refused(Refusal.TURNED_AWAY, words))
        else:
            self._clients[peer] = self._clock()
            self.books.client_came(peer, hello.place, hello.budget_bytes)
            self._send(self._front, peer, self._state())

    def _submit(self, peer: Peer, said: Submit, frames: Sequence[Carried]) -> None:
        if said.broker != self._name:
            words = "it was sent to an earlier life of this broker"
            self._send(self._front, peer, Failed(said.request, Trouble.REFUSED, words))
            return
        self._send_all(self.books.submit(peer, said, frames, self._clock()))

    def _knows(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self.address.token.encode())

    def _answer(self, peer: Peer, ask: Ask) -> None:
        try:
            body = self._orders.obey(ask.verb, ask.value, self._clock())
        except OrderError as error:
            self._send(self._front, peer, Told(ask.question, str(error)))
            return
        self._send(self._front, peer, Told(ask.question), [msgspec.json.encode({"name": self._name, **body})])

    def _client_gone(self, peer: Peer) -> None:
        self._clients.pop(peer, None)
        self._send_all(self.books.client_gone(peer))

    # Workers

    def _on_workers(self, frames: Sequence[zmq.Frame]) -> None:
        peer = frames[0].bytes
        try:
            messages = open_bundle(frames[1:], FromWorker)
        except WireError as error:
            log.warning("a worker said what is no message of ours: %s", error)
            self._send(self._back, peer, Refused(Refusal.UNREADABLE, str(error)))
            return
        for said, carried in messages:
            self.crew.hear(peer, said, carried)
        self._tell_state()

    # Time

    def _tick(self) -> None:
        now = self._clock()
        self._next_tick = self._lag.tick(now)
        try:
            self.crew.watch(now)
        except SlotsSpent as error:
            log.error("%s", error)
            self._send_all(self.books.fail_all(str(error)))
        self._send_all(self.books.expire(now))
        self._tell_state()
        if now >= self._next_client_tick:
            self._next_client_tick = now + CLIENT_TICK_S
            self._tick_clients(now)
            self.crew.tick()

    def _tick_clients(self, now: float) -> None:
        for peer, heard in list(self._clients.items()):
            if now - heard > CLIENT_SILENCE_S:
                self._client_gone(peer)
            else:
                self._send(self._front, peer, Tick())

    def _state(self) -> Welcome:
        return Welcome(self._name, self._settings.window, self.crew.slots.ready, self.books.failing)

    def _tell_state(self) -> None:
        state = self._state()
        if state != self._told_state:
            self._told_state = state
            for peer in list(self._clients):
                self._send(self._front, peer, state)

    # Sending

    def _send_all(self, letters: Sequence[Letter]) -> None:
        for letter in letters:
            self._send(self._back if letter.to_worker else self._front, letter.to, letter.envelope, letter.frames)

    def _send(self, socket: zmq.Socket[bytes], peer: Peer, envelope: Envelope, frames: Sequence[Any] = ()) -> None:
        self._post.put(socket, peer, envelope, frames)

    def _deliver(self) -> None:
        while unreachable := self._post.flush():
            for socket, peer in unreachable:
                if socket is self._front:
                    self._client_gone(peer)
                else:
                    self.crew.cut_off(peer)
