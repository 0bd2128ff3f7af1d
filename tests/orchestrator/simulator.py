"""A world for the planner: engines, a trainer, evaluations and crashes, with a virtual clock and a seed.

It drives the very code that a run uses (planner, evals, concurrency, snapshots) through every order of events that the
seed makes, and remembers what happened, so that a test can say what must never happen.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

from rollwright.orchestrator.advantages import Grpo, make_advantage
from rollwright.orchestrator.concurrency import Concurrency, ConcurrencySettings
from rollwright.orchestrator.evals import EvalPlan, EvalReport, Evals
from rollwright.orchestrator.filters import make_filters
from rollwright.orchestrator.groups import Arrival, Fate, Landed, Outcome, Ticket, lost_group
from rollwright.orchestrator.planner import Planner
from rollwright.orchestrator.plans import Cut, PlanSettings, Snapshot
from rollwright.orchestrator.sources import SourcePlan

ROLLOUT_BYTES = 1000
CONCURRENCY = ConcurrencySettings(initial=64, least=4, most=64, settle_s=1.0)


@dataclass
class World:
    """What the seed and the test choose."""

    settings: PlanSettings
    seed: int = 0
    sources: tuple[SourcePlan, ...] = (SourcePlan(name="train", tasks=7, group_size=4),)
    evals: tuple[EvalPlan, ...] = ()
    eval_seats: int = 8
    failing: float = 0.1
    """Share of rollouts that fail."""
    slow: float = 0.05
    """Share of groups that take fifty times as long."""
    crash: float = 0.0
    """Chance per event that the orchestrator dies and comes back."""
    meddling: float = 0.0
    """Chance per event that somebody cancels a group."""
    train_s: float = 5.0
    publish_late: float = 0.2
    """Chance that a version comes much later than usual."""
    filters: tuple = ()


@dataclass
class History:
    batches: list[Cut] = field(default_factory=list)
    trained_at: dict[tuple[int, int], int] = field(default_factory=dict)
    oldest: dict[tuple[int, int], int] = field(default_factory=dict)
    evals: list[EvalReport] = field(default_factory=list)
    events: int = 0
    crashes: int = 0
    most_buffered: int = 0
    most_in_flight: int = 0
    cancelled: set[int] = field(default_factory=set)


class Simulator:
    MOST_EVENTS = 200_000

    def __init__(self, world: World) -> None:
        self.world = world
        self.history = History()
        self._dice = random.Random(world.seed)
        self._now = 0.0
        self._events: list[tuple[float, int, str, object]] = []
        self._count = 0
        self._served = 0
        self._published = 0
        self._trainer_free = 0.0
        self._snapshot: Snapshot | None = None
        self._eval_state = None
        self._disk: dict[int, Landed] = {}
        self._shipped_files: dict[int, list[tuple[int, int]]] = {}
        self._life = 0
        self._born()

    def run(self) -> History:
        """Until the run is finished. A world in which nothing can happen any more is a deadlock, and is told as one."""
        while not (self.planner.finished and self.evals.idle):
            self._turn()
            if self.planner.finished and self.evals.idle:
                break
            if not self._events:
                raise AssertionError(f"deadlock: {self.planner!r}")
            self.history.events += 1
            assert self.history.events < self.MOST_EVENTS, f"no end in sight: {self.planner!r}"
            self._now, _, kind, value = heapq.heappop(self._events)
            getattr(self, f"_on_{kind}")(value)
            self._fate()
        self.planner.end()
        return self.history

    # Lives of the orchestrator

    def _born(self) -> None:
        world = self.world
        self._life += 1
        filters = make_filters(world.filters)
        advantage = make_advantage(Grpo())
        self.planner = Planner(world.settings, world.sources, advantage, filters, self._snapshot)
        self.evals = Evals(world.evals, world.eval_seats, self._eval_state)
        self.concurrency = Concurrency(CONCURRENCY)
        since = {step: members for step, members in self._shipped_files.items() if step > self.planner.step}
        self.planner.recover(self._disk.values(), since)
        self.planner.advance(self._served)
        self.evals.advance(self.planner.version, self._now)

    def _fate(self) -> None:
        if self._dice.random() < self.world.crash:
            self._die()
        if self._dice.random() < self.world.meddling and self.planner._running:
            self._cancel(self.planner._running.keys(), one=True)

    def _cancel(self, numbers, one: bool = False) -> None:
        numbers = [self._dice.choice(list(numbers))] if one else list(numbers)
        for number in numbers:
            if one:
                self.planner.cancel(number)
            self.history.cancelled.add(number)

    # What the loop does

    def _turn(self) -> None:
        tickets = self.evals.launch()
        if not self.planner.finished:
            tickets += self.planner.launch(self.concurrency.limit)
        for ticket in tickets:
            self._at(self._duration(), "arrived", (self._life, ticket, self._served))
        self.history.most_in_flight = max(self.history.most_in_flight, self.planner.in_flight)
        self.history.most_buffered = max(self.history.most_buffered, self.planner.buffered_bytes)
        if (cut := self.planner.cut()) is not None:
            self._at(self._dice.random(), "shipped", (self._life, cut))

    def _on_arrived(self, value: object) -> None:
        life, ticket, served = value  # type: ignore[misc]
        if life != self._life:
            return
        landed = self._landed(ticket, served)
        if self.evals.owns(ticket.number):
            if (report := self.evals.arrive(landed, self._now)) is not None:
                self.history.evals.append(report)
            return
        if any(arrival.outcome.fate is Fate.TRAINED for arrival in landed.arrivals):
            self._disk[ticket.number] = landed
        if self._dice.random() < self.world.crash:
            # The group has landed, and nobody has heard of it.
            self._die()
        elif not self.planner.arrive(landed):
            self._disk.pop(ticket.number, None)

    def _on_shipped(self, value: object) -> None:
        life, cut = value  # type: ignore[misc]
        if life != self._life:
            return
        self._shipped_files[cut.step] = [(pick.group, pick.member) for pick in cut.picks]
        self._remember(cut)
        # A trainer does one step after another.
        train_s = self.world.train_s * (20 if self._dice.random() < self.world.publish_late else 1)
        self._trainer_free = max(self._trainer_free, self._now) + train_s
        self._at(self._trainer_free - self._now, "trained", cut.step)
        if self._dice.random() < self.world.crash:
            # The batch is there, and no checkpoint knows.
            self._die()
            return
        self._cancel(self.planner.shipped())
        released = self.planner.take_released()
        self._snapshot = self.planner.snapshot()
        self._eval_state = self.evals.state()
        for landed in released:
            self._disk.pop(landed.ticket.number, None)

    def _on_trained(self, step: object) -> None:
        assert isinstance(step, int)
        self._published = max(self._published, step)
        self._at(self._dice.random(), "published", self._published)

    def _on_published(self, version: object) -> None:
        assert isinstance(version, int)
        self._cancel(self.planner.advance(version))
        self._served = max(self._served, version)
        self.evals.advance(version, self._now)

    # The world

    def _die(self) -> None:
        self.history.crashes += 1
        self._events = [event for event in self._events if event[2] in ("trained", "published")]
        heapq.heapify(self._events)
        self._born()

    def _at(self, delay: float, kind: str, value: object) -> None:
        self._count += 1
        heapq.heappush(self._events, (self._now + delay, self._count, kind, value))

    def _duration(self) -> float:
        return self._dice.expovariate(0.5) * (50 if self._dice.random() < self.world.slow else 1)

    def _landed(self, ticket: Ticket, served: int) -> Landed:
        if self._dice.random() < self.world.failing / 4:
            return lost_group(ticket, "engine/EngineUnavailable")
        # A group is the same in every life: what it gives rests on its ticket, as a task's rollouts do.
        dice = random.Random(f"{self.world.seed} {ticket.source} {ticket.task} {ticket.first_attempt}")
        arrivals = []
        for _ in range(ticket.size):
            failed = dice.random() < self.world.failing
            outcome = Outcome(Fate.FAILED, "task/TaskBroken") if failed else Outcome(Fate.TRAINED)
            tokens = 0 if failed else dice.randint(1, 100)
            arrivals.append(
                Arrival(
                    outcome,
                    reward=float(dice.random() < 0.5),
                    finished=not failed,
                    tokens=tokens,
                    bytes=0 if failed else ROLLOUT_BYTES,
                    oldest_version=served,
                    newest_version=self._served,
                )
            )
        return Landed(ticket, tuple(arrivals), f"group-{ticket.number}")

    def _remember(self, cut: Cut) -> None:
        self.history.batches.append(cut)
        for pick, staleness in zip(cut.picks, cut.staleness, strict=True):
            key = pick.group, pick.member
            assert key not in self.history.trained_at, f"rollout {key} is trained twice"
            self.history.trained_at[key] = cut.step
            arrival = self._disk[pick.group].arrivals[pick.member]
            self.history.oldest[key] = arrival.oldest_version
            assert staleness >= max(cut.step - 1 - arrival.oldest_version, 0) or not self.world.settings.follow
