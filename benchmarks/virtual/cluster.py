"""The cluster: clients, one broker, workers. The broker decides by `Books` and `Slots`, the very code that it runs;
time and cost are this module's, and so are deaths. Engines are as large as they need to be."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field

from rollwright.serve.books import Books
from rollwright.serve.ledger import Bounds, Letter
from rollwright.serve.protocol import Drop, Failed, Part, Run, Submit
from rollwright.serve.slots import Life, Slots, SlotSettings

from .clock import Clock, Lane
from .costs import Costs, Load

DEADLINE_S = 24 * 3600.0
BEAT_SHARES = 10
"""Beats are spread over so many moments of each round."""


@dataclass(eq=False)
class Hand:
    """A worker as the world knows it; the broker knows its `life`."""

    life: Life
    lane: Lane
    io: Lane
    alive: bool = True
    died_at: float = 0.0
    running: set[int] = field(default_factory=set)


class Cluster:
    def __init__(self, load: Load, costs: Costs, seed: int) -> None:
        self.load, self.costs = load, costs
        self._dice = random.Random(seed)
        self.clock = Clock()
        self.books = Books(Bounds(window=load.concurrency, queue=load.concurrency, redispatches=20))
        self.slots = Slots(load.workers, SlotSettings(max_restarts=20), 0.0)
        self.broker = Lane(self.clock)
        self.broker_io = [Lane(self.clock) for _ in range(load.io_threads)]
        self.clients = [Lane(self.clock) for _ in range(load.clients)]
        self.client_io = [Lane(self.clock) for _ in range(load.clients)]
        self.hands: dict[bytes, Hand] = {}
        self.submitted = 0
        self.withdrawn = 0
        """On their way to the broker when the clients left."""
        self.arriving = 0
        """Answers on their way from the broker to whoever asked."""
        self.leaving = False
        self.delivered: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()
        self.notices_s: list[float] = []
        self.worker_load_s = 0.0
        self.loads: dict[str, float] = {}
        """How busy each part was while the clients were there; of several of a kind, the busiest."""
        self.per_s = 0.0

    def run(self) -> None:
        self.clock.at(0.0, self._tick)
        self.clock.at(0.0, self._beats, 0)
        for number in range(self.load.concurrency):
            self.clock.at(0.0, self._submit, number % self.load.clients)
        self.clock.at(self.load.window_s, self._leave)
        self.clock.run(lambda: self.leaving and not self.arriving and self._ended() + self.withdrawn == self.submitted)

    def _leave(self) -> None:
        """The clients have seen enough. What they were waiting for is dropped, which the books account for."""
        self.leaving = True
        self.loads, self.per_s = self._measured(), (len(self.delivered) + len(self.failed)) / self.clock.now
        for client in range(self.load.clients):
            self._post(self.books.client_gone(b"%d" % client))

    def _ended(self) -> int:
        return len(self.delivered) + len(self.failed) + self.books.counts["abandoned"]

    # The client's end

    def _submit(self, client: int) -> None:
        if not self.leaving:
            number, self.submitted = self.submitted, self.submitted + 1
            self.clients[client].do(self.costs.client_us / 2e6, self._sent, client, number)

    def _sent(self, client: int, number: int) -> None:
        asked = Submit(number, 1, "", DEADLINE_S, "")
        self.clock.at(self.clock.now + self.costs.hop_s, self._at_broker, client, asked)

    def _answered(self, client: int, number: int, well: bool) -> None:
        self.arriving -= 1
        (self.delivered if well else self.failed)[number] += 1
        self._submit(client)

    # The broker

    def _at_broker(self, client: int, asked: Submit) -> None:
        self.broker.do(self.costs.broker_us / 2e6, self._take, client, asked)

    def _take(self, client: int, asked: Submit) -> None:
        if self.leaving:
            self.withdrawn += 1
            return
        self._post(self.books.submit(b"%d" % client, asked, (), self.clock.now))

    def _post(self, letters: list[Letter]) -> None:
        for letter in letters:
            if letter.to_worker:
                self.clock.at(self.clock.now + self.costs.hop_s, self._at_worker, letter.to, letter.envelope)
            elif isinstance(letter.envelope, Part | Failed):
                self._to_client(int(letter.to), letter.envelope)

    def _to_client(self, client: int, said: Part | Failed) -> None:
        """Encrypted by the broker, decrypted by the client, then told to whoever waits."""
        self.arriving += 1
        well = isinstance(said, Part)
        mb = self.load.mb if well else 0.0
        lane = self.broker_io[client % len(self.broker_io)]
        lane.do(mb * self.costs.broker_ms_per_mb / 1e3, self._to_client_io, client, said.request, well, mb)

    def _to_client_io(self, client: int, number: int, well: bool, mb: float) -> None:
        self.client_io[client].do(mb * self.costs.peer_ms_per_mb / 1e3, self._to_client_loop, client, number, well)

    def _to_client_loop(self, client: int, number: int, well: bool) -> None:
        self.clients[client].do(self.costs.client_us / 2e6, self._answered, client, number, well)

    def _result(self, peer: bytes, ticket: int) -> None:
        self._post(self.books.result(peer, Part(ticket, 0, True), (), self.clock.now))

    def _tick(self) -> None:
        """As the broker's own: who is hopeless is buried, who is due is started."""
        now = self.clock.now
        self.broker.do(len(self.slots.lives) * self.costs.tick_us / 1e6)
        for lost in self.slots.hopeless(now):
            hand = self.hands.pop(lost.life.peer, None)
            if hand is not None:
                self.worker_load_s += hand.lane.busy_s
                self.notices_s.append(now - hand.died_at)
            self._post(self.books.worker_lost(lost.life.peer, lost.why, now))
            self.slots.buried(lost.life, lost.why, now)
        for life in self.slots.due(now):
            # The first ones are there already: what is asked is how the cluster runs, not how it comes up.
            self.clock.at(now + (self.costs.start_s if now else 0.0), self._arrive, life)
        self._post(self.books.expire(now))
        self.clock.at(now + 1 / self.costs.ticks_per_s, self._tick)

    def _beats(self, share: int) -> None:
        now = self.clock.now
        mine = [hand for hand in self.hands.values() if hand.life.slot % BEAT_SHARES == share and hand.alive]
        self.broker.do(len(mine) * self.costs.beat_us / 1e6)
        for hand in mine:
            self.slots.beat(hand.life, 0.0, "", hand.life.vitals, now)
        self.clock.at(now + 1 / self.costs.beats_per_s / BEAT_SHARES, self._beats, (share + 1) % BEAT_SHARES)

    # Workers

    def _arrive(self, life: Life) -> None:
        now = self.clock.now
        peer = b"%d.%d" % (life.slot, life.number)
        self.slots.arrived(life, peer, now)
        self.slots.proven(life, now)
        self.hands[peer] = hand = Hand(life, Lane(self.clock), Lane(self.clock))
        if self.load.deaths_per_worker_hour:
            self.clock.at(now + self._dice.expovariate(self.load.deaths_per_worker_hour / 3600), self._die, hand)
        self._post(self.books.seat(peer, self.load.capacity, now))

    def _die(self, hand: Hand) -> None:
        hand.alive, hand.died_at = False, self.clock.now

    def _at_worker(self, peer: bytes, said: object) -> None:
        hand = self.hands.get(peer)
        if hand is None or not hand.alive:
            return
        if isinstance(said, Drop):
            hand.running.discard(said.ticket)
        elif isinstance(said, Run):
            hand.running.add(said.ticket)
            # Half of the loop's work before the engine's time and half behind it, so that a busy loop shows in both.
            begun = said.ticket <= self.load.concurrency
            hand.lane.do(0.0 if begun else self._cpu_s() / 2, self._engine, hand, peer, begun, said.ticket)

    def _cpu_s(self) -> float:
        return (self.load.turns * self.costs.turn_us + self.costs.worker_us) / 1e6

    def _engine(self, hand: Hand, peer: bytes, begun: bool, ticket: int) -> None:
        mean_s = self.load.turns * self.load.turn_s
        mu = math.log(mean_s) - self.load.spread**2 / 2
        if begun:
            # The first ones are met in the middle of their lives, as a look at a running cluster meets them: the longer
            # a rollout, the likelier, and at any point of it.
            left_s = self._dice.lognormvariate(mu + self.load.spread**2, self.load.spread) * self._dice.random()
        else:
            left_s = self._dice.lognormvariate(mu, self.load.spread)
        self.clock.at(self.clock.now + left_s, self._scored, hand, peer, ticket)

    def _scored(self, hand: Hand, peer: bytes, ticket: int) -> None:
        hand.lane.do(self._cpu_s() / 2, self._send, hand, peer, ticket)

    def _send(self, hand: Hand, peer: bytes, ticket: int) -> None:
        if hand.alive and ticket in hand.running:
            hand.running.discard(ticket)
            hand.io.do(self.load.mb * self.costs.peer_ms_per_mb / 1e3, self._sent_back, hand, peer, ticket)

    def _sent_back(self, hand: Hand, peer: bytes, ticket: int) -> None:
        lane = self.broker_io[hand.life.slot % len(self.broker_io)]
        lane.do(self.load.mb * self.costs.broker_ms_per_mb / 1e3, self._back_at_broker, peer, ticket)

    def _back_at_broker(self, peer: bytes, ticket: int) -> None:
        self.broker.do(self.costs.broker_us / 2e6, self._result, peer, ticket)

    # What came of it

    def _measured(self) -> dict[str, float]:
        workers_s = self.worker_load_s + sum(hand.lane.busy_s for hand in self.hands.values())
        return {
            "broker_loop": self.broker.load(),
            "broker_io": max(lane.load() for lane in self.broker_io),
            "client_loop": max(lane.load() for lane in self.clients),
            "client_io": max(lane.load() for lane in self.client_io),
            "worker_loop": workers_s / self.load.workers / self.clock.now,
        }

    def figures(self) -> dict[str, float]:
        mean_s = self.load.turns * self.load.turn_s
        ended = self.delivered + self.failed
        return {
            "workers": float(self.load.workers),
            "rollouts": float(len(self.delivered)),
            "rollouts_per_s": self.per_s,
            "of_ideal": self.per_s * mean_s / self.load.concurrency,
            "gb_per_s": self.per_s * self.load.mb / 1e3,
            **self.loads,
            "broker_wait_ms": self.broker.longest_wait_s * 1e3,
            "deaths": float(len(self.notices_s)),
            "notice_max_s": max(self.notices_s, default=0.0),
            "redispatched": float(self.books.counts["redispatched"]),
            "lost": float(self.submitted - self.withdrawn - len(ended) - self.books.counts["abandoned"]),
            "duplicated": float(sum(count - 1 for count in ended.values())),
        }
