"""The broker's side of its workers: who comes, proves itself, stands still, dies, leaves, and is started again.

The slots say what is to be done about each life, the books what becomes of the work it held; here it is done.
"""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from rollwright.wire import WireError

from .books import Books
from .bundles import Carried
from .launching import GUEST, Launcher, WorkerOrder
from .ledger import Letter, Peer
from .protocol import (
    VERSION,
    Arrived,
    Beat,
    Done,
    Envelope,
    Failed,
    Leave,
    Leaving,
    Part,
    Policy,
    Probe,
    Probed,
    Refusal,
    Refused,
    Tick,
)
from .pulse import read_beat
from .settings import BrokerSettings
from .slots import Life, Phase, Slots

log = logging.getLogger("rollwright.serve")

_TURNED_AWAY = "its token or version is not this server's, or nobody asked for it"
ALL_BEGUN = sys.maxsize
HELD = "(a call that does not let go of the interpreter)"


class Crew:
    def __init__(
        self,
        settings: BrokerSettings,
        books: Books,
        launcher: Launcher,
        address: str,
        clock: Callable[[], float],
        knows: Callable[[str], bool],
        send: Callable[[Peer, Envelope], None],
        send_all: Callable[[Sequence[Letter]], None],
    ) -> None:
        self._settings = settings
        self._books = books
        self._launcher = launcher
        self._address = address
        self._clock = clock
        self._knows, self._send, self._send_all = knows, send, send_all
        self.slots = Slots(settings.workers, settings.slots, clock())
        self._lives: dict[Peer, Life] = {}
        self._places: dict[Peer, str] = {}
        self._probes: dict[Peer, int] = {}
        self._policy = 0

    def __repr__(self) -> str:
        return f"<Crew {self.slots!r}>"

    def hear(self, peer: Peer, said: Any, frames: Sequence[Carried]) -> None:
        if isinstance(said, Arrived):
            self._arrived(peer, said)
        elif isinstance(said, Probed):
            self._probed(peer, said)
        elif isinstance(said, Leaving) and peer in self._lives:
            self._lives[peer].phase = Phase.LEAVING
            self.relieve(self._lives[peer])
        elif isinstance(said, Part | Done | Failed):
            self._send_all(self._books.result(peer, said, frames, self._clock()))

    def _arrived(self, peer: Peer, said: Arrived) -> None:
        life = self._newcomer(said)
        if life is None or life.peer:
            log.warning("a worker that nobody asked for was turned away (slot %d, life %d)", said.slot, said.life)
            self._send(peer, Refused(Refusal.TURNED_AWAY, _TURNED_AWAY))
            return
        self.slots.arrived(life, peer, self._clock())
        self._lives[peer], self._places[peer] = life, said.place
        self._send(peer, Policy(self._policy))
        self._probes[peer] = nonce = secrets.randbits(48)
        self._send(peer, Probe(nonce))

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
        capacity = life.capacity or self._settings.capacity
        self._send_all(self._books.seat(peer, capacity, self._clock(), self._places[peer]))

    def on_pulse(self, frames: Sequence[zmq.Frame]) -> None:
        try:
            beat, vitals = read_beat([frame.buffer for frame in frames])
        except WireError as error:
            log.warning("a pulse was no message of ours: %s", error)
            return
        life = self.slots.life(beat.slot, beat.life)
        if life is not None and self._knows(beat.token):
            self._pulse_came(life, beat, vitals)

    def _pulse_came(self, life: Life, beat: Beat, vitals: dict[str, float]) -> None:
        before = life.phase
        self.slots.beat(life, beat.loop_age_s, beat.stack, vitals, self._clock())
        if life.phase is not before:
            if life.phase is Phase.STALLED:
                log.warning("%s stands still for %.1f s at:\n%s", life.name, life.loop_age_s, life.stack)
            self._send_all(self._books.open_seat(life.peer, life.phase is Phase.READY, self._clock()))
        if life.phase is Phase.STALLED:
            # Told with every beat of a stall: what was sent before it was known may come to light only then.
            self._send_all(self._books.take_back(life.peer, beat.begun, self._clock()))

    def tell_policy(self, version: int) -> None:
        self._policy = version
        for peer in self._lives:
            self._send(peer, Policy(version))

    def relieve(self, life: Life) -> None:
        """It gets no more work and is told to go when it has finished."""
        if life.peer:
            self._send_all(self._books.open_seat(life.peer, False, self._clock()))
            self._send(life.peer, Leave())
        else:
            self._launcher.kill(life.slot, life.number)

    def tick(self) -> None:
        for peer in list(self._lives):
            self._send(peer, Tick())

    def watch(self, now: float) -> None:
        """Do what time has brought. SlotsSpent where nothing will ever run here again."""
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
            self.relieve(life)
        if self._books.failing:
            return
        for life in self.slots.due(now, self._launcher.room(self.slots.count)):
            self._launch(life)

    def _excuse(self, now: float) -> None:
        """A pulse that a computing worker keeps from beating is the sign of a stall. What it has begun since it last
        spoke nobody knows, so nothing is taken back from it."""
        for life in self.slots.silent(now):
            if self._launcher.computing(life.slot, life.number):
                age_s = life.loop_age_s + now - life.last_beat
                self._pulse_came(life, Beat("", life.slot, life.number, age_s, HELD, ALL_BEGUN), life.vitals)

    def _launch(self, life: Life) -> None:
        told = self._settings
        place = life.slot, life.number, self._address
        self._launcher.start(WorkerOrder(*place, told.host, told.options, told.capacity))

    def _bury(self, life: Life, why: str, now: float) -> None:
        if life.phase is not Phase.LEAVING:
            log.warning("%s is dead: %s", life.name, why)
        self._lives.pop(life.peer, None)
        self._probes.pop(life.peer, None)
        self._places.pop(life.peer, None)
        self._send_all(self._books.worker_lost(life.peer, f"{life.name}: {why}", now))
        self.slots.buried(life, why, now)

    def cut_off(self, peer: Peer) -> None:
        """Its line broke, and what was on it is lost: a worker that lives on must begin anew."""
        life = self._lives.get(peer)
        if life is None:
            return
        if life.slot == GUEST:
            self._bury(life, "its line broke", self._clock())
        else:
            self._launcher.kill(life.slot, life.number)
