"""The broker: carries requests to workers and results to clients, and keeps the workers alive.

One thread, one plain loop over four sockets, no asyncio. It reads envelopes, asks the books and the slots what to do,
and does it. Frames behind an envelope are passed on as they came. Whatever a peer sends that is no message of ours is
answered with `Refused` and changes nothing.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zmq

from rollwright.telemetry.lag import LagBook
from rollwright.wire import WireError

from .books import Books, Bounds, Letter, Peer
from .bundles import Carried, open_bundle
from .launching import GUEST, Launcher, WorkerOrder
from .orders import OrderError, Orders
from .post import Post
from .protocol import (
    SAY_HELLO,
    VERSION,
    Arrived,
    Ask,
    Bye,
    Cancel,
    Done,
    Envelope,
    Failed,
    FromClient,
    FromWorker,
    Hello,
    Leave,
    Leaving,
    Part,
    Policy,
    Probe,
    Probed,
    Refused,
    Submit,
    Tick,
    Told,
    Trouble,
    Welcome,
    Withdraw,
)
from .pulse import lag_vitals, own_vitals, read_beat
from .settings import BrokerSettings
from .slots import Life, Phase, Slots, SlotsSpent
from .wiring import Locks, bound, told_end

log = logging.getLogger("rollwright.serve")

TICK_S = 0.05
CLIENT_TICK_S = 0.5
CLIENT_SILENCE_S = 60.0
"""A client whose loop is busy says nothing; one that is silent for so long is gone."""
HELD = "(a call that does not let go of the interpreter)"
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
        self.slots = Slots(settings.workers, settings.slots, clock())
        self._orders = Orders(
            settings, self.books, self.slots, self._relieve, self.vitals, self._send_all, self._tell_policy, scaled
        )
        self._post = Post()
        self._lag = LagBook(clock(), TICK_S)
        self._clients: dict[Peer, float] = {}
        self._lives: dict[Peer, Life] = {}
        self._probes: dict[Peer, int] = {}
        self._told_state = self._state()
        self._policy = 0
        self._next_tick = self._next_client_tick = 0.0
        self.closing = False

    def __repr__(self) -> str:
        return f"<Broker {len(self._clients)} clients, {self.slots!r}, {self.books!r}>"

    def vitals(self) -> dict[str, float]:
        """The broker's own. Its lag is how late its loop comes round."""
        lag = self._lag.snapshot(self._clock())
        return {**own_vitals(), "clients": float(len(self._clients)), **lag_vitals(lag)}

    def run(self) -> None:
        """Until `closing` is set, which a signal handler may do."""
        poller = zmq.Poller()
        sockets: list[tuple[zmq.Socket[bytes], Hearing]] = [
            (self._pulse, self._on_pulse),
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
            self._send(self._front, peer, Refused(str(error)))
            return
        for said, carried in messages:
            self._client_said(peer, said, carried)

    def _client_said(self, peer: Peer, said: Any, frames: Sequence[Carried]) -> None:
        if isinstance(said, Hello):
            self._welcome(peer, said)
        elif peer not in self._clients:
            self._send(self._front, peer, Refused(SAY_HELLO))
        elif isinstance(said, Submit):
            self._submit(peer, said, frames)
        elif isinstance(said, Tick):
            self._send_all(self.books.has_read(peer, said.read_bytes, self._clock()))
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
            self._send(self._front, peer, Refused("the token is not this server's"))
        elif hello.version != VERSION:
            self._send(self._front, peer, Refused(f"this server speaks version {VERSION}, not {hello.version}"))
        else:
            self._clients[peer] = self._clock()
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
            return
        for said, carried in messages:
            self._worker_said(peer, said, carried)

    def _worker_said(self, peer: Peer, said: Any, frames: Sequence[Carried]) -> None:
        if isinstance(said, Arrived):
            self._arrived(peer, said)
        elif isinstance(said, Probed):
            self._probed(peer, said)
        elif isinstance(said, Leaving) and peer in self._lives:
            self._lives[peer].phase = Phase.LEAVING
            self._relieve(self._lives[peer])
        elif isinstance(said, Part | Done | Failed):
            self._send_all(self.books.result(peer, said, frames, self._clock()))

    def _arrived(self, peer: Peer, said: Arrived) -> None:
        life = self._newcomer(said)
        if life is None or life.peer:
            log.warning("a worker that nobody asked for was turned away (slot %d, life %d)", said.slot, said.life)
            self._send(self._back, peer, Refused("its token or version is not this server's, or nobody asked for it"))
            return
        self.slots.arrived(life, peer, self._clock())
        self._lives[peer] = life
        self._send(self._back, peer, Policy(self._policy))
        self._probes[peer] = nonce = secrets.randbits(48)
        self._send(self._back, peer, Probe(nonce))

    def _newcomer(self, said: Arrived) -> Life | None:
        if not self._knows(said.token) or said.version != VERSION:
            return None
        if said.slot == GUEST:
            return self.slots.joined(said.life, said.capacity, self._clock())
        return self.slots.life(said.slot, said.life)

    def _probed(self, peer: Peer, said: Probed) -> None:
        life = self._lives.get(peer)
        if life is None or self._probes.pop(peer, None) != said.nonce or life.phase is not Phase.PROBING:
            return
        self.slots.proven(life, self._clock())
        self._send_all(self.books.seat(peer, life.capacity or self._settings.capacity, self._clock()))
        self._tell_state()

    def _on_pulse(self, frames: Sequence[zmq.Frame]) -> None:
        try:
            beat, vitals = read_beat([frame.buffer for frame in frames])
        except WireError as error:
            log.warning("a pulse was no message of ours: %s", error)
            return
        life = self.slots.life(beat.slot, beat.life)
        if life is not None and self._knows(beat.token):
            self._pulse_came(life, beat.loop_age_s, beat.stack, vitals)

    def _pulse_came(self, life: Life, loop_age_s: float, stack: str, vitals: dict[str, float]) -> None:
        before = life.phase
        self.slots.beat(life, loop_age_s, stack, vitals, self._clock())
        if life.phase is before:
            return
        if life.phase is Phase.STALLED:
            log.warning("%s stands still for %.1f s at:\n%s", life.name, life.loop_age_s, life.stack)
        self._send_all(self.books.open_seat(life.peer, life.phase is Phase.READY, self._clock()))
        self._tell_state()

    def _tell_policy(self, version: int) -> None:
        self._policy = version
        for peer in self._lives:
            self._send(self._back, peer, Policy(version))

    def _relieve(self, life: Life) -> None:
        """It gets no more work and is told to go when it has finished."""
        if life.peer:
            self._send_all(self.books.open_seat(life.peer, False, self._clock()))
            self._send(self._back, life.peer, Leave())
        else:
            self._launcher.kill(life.slot, life.number)

    # Time

    def _tick(self) -> None:
        now = self._clock()
        self._next_tick = self._lag.tick(now)
        try:
            self._watch(now)
        except SlotsSpent as error:
            log.error("%s", error)
            self._send_all(self.books.fail_all(str(error)))
        self._send_all(self.books.expire(now))
        self._tell_state()
        if now >= self._next_client_tick:
            self._next_client_tick = now + CLIENT_TICK_S
            self._tick_clients(now)
            for peer in list(self._lives):
                self._send(self._back, peer, Tick())

    def _watch(self, now: float) -> None:
        for exit in self._launcher.exits():
            if (life := self.slots.life(exit.slot, exit.life)) is not None:
                self._bury(life, exit.words, now)
        self._excuse(now)
        for lost in self.slots.hopeless(now):
            # Ended first: a process that is only stopped could wake up and answer.
            self._launcher.kill(lost.life.slot, lost.life.number)
            self._bury(lost.life, lost.why, now)
        for life in self.slots.overgrown():
            log.warning("%s holds %.0f MB, which is too much: it is relieved", life.name, life.vitals["rss_mb"])
            self._relieve(life)
        if self.books.failing:
            return
        for life in self.slots.due(now, self._launcher.room(self.slots.count)):
            self._launch(life)

    def _excuse(self, now: float) -> None:
        """A pulse that a computing worker keeps from beating is the sign of a stall."""
        for life in self.slots.silent(now):
            if self._launcher.computing(life.slot, life.number):
                self._pulse_came(life, life.loop_age_s + now - life.last_beat, HELD, life.vitals)

    def _launch(self, life: Life) -> None:
        told = self._settings
        place = life.slot, life.number, self.address.encode()
        self._launcher.start(WorkerOrder(*place, told.host, told.options, told.capacity))

    def _bury(self, life: Life, why: str, now: float) -> None:
        if life.phase is not Phase.LEAVING:
            log.warning("%s is dead: %s", life.name, why)
        self._lives.pop(life.peer, None)
        self._probes.pop(life.peer, None)
        self._send_all(self.books.worker_lost(life.peer, f"{life.name}: {why}", now))
        self.slots.buried(life, why, now)

    def _tick_clients(self, now: float) -> None:
        for peer, heard in list(self._clients.items()):
            if now - heard > CLIENT_SILENCE_S:
                self._client_gone(peer)
            else:
                self._send(self._front, peer, Tick())

    def _state(self) -> Welcome:
        return Welcome(self._name, self._settings.window, self.slots.ready, self.books.failing)

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
                elif peer in self._lives:
                    self._cut_off(self._lives[peer])

    def _cut_off(self, life: Life) -> None:
        """Its line broke, and what was on it is lost: a worker that lives on must begin anew."""
        if life.slot == GUEST:
            self._bury(life, "its line broke", self._clock())
        else:
            self._launcher.kill(life.slot, life.number)
