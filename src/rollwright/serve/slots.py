"""The lives of the workers: which are to be started, watched, replaced or given up. Time is a parameter.

A slot is a place for a worker; it has one life after the other. Three things can be wrong with a life, and they are
different: it is dead (its process ended, or its pulse fell silent), its loop is stalled (the pulse goes on and says
where the loop stands), or it has grown past its budget. A dead one is replaced after a pause that doubles with each
death and is forgotten after a time of health; a stalled one only after `stall_limit_s`; a grown one is relieved: it
gets no more work, its successor is started, and it goes when it has finished. One that grew within `health_s` and had
finished nothing is on its slot's record like a dead one, or workers that do not fit their budget would be started for
ever.

No two lives have the same number, whichever their slots: a worker that is still leaving is never taken for another.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from .launching import GUEST

MAX_GUESTS = 4096
HAPPENINGS = 256


class SlotSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How patient the broker is with its workers."""

    silence_s: float = 1.5
    """A pulse that is silent for so long has stopped."""
    start_timeout_s: float = 120.0
    """How long a worker may take from its start to its first answer."""
    stall_after_s: float = 1.0
    """A loop that has not turned for so long is stalled."""
    stall_limit_s: float = 300.0
    """A worker stalled for so long is ended."""
    max_restarts: int = 5
    """So many deaths of one slot, without health in between, are borne; one more ends the run."""
    backoff_s: float = 0.25
    """Pause before the second start in a row; it doubles from there."""
    max_backoff_s: float = 30.0
    health_s: float = 60.0
    """A worker that was well for so long clears its slot's record."""
    memory_mb: float = 0.0
    """A worker larger than this, without its shelf, is replaced when it has finished what it holds; 0 is no limit."""


@dataclass(slots=True)
class Record:
    """How often in a row one thing died. A time of health clears it."""

    settings: SlotSettings
    deaths: int = 0

    @property
    def spent(self) -> bool:
        return self.deaths > self.settings.max_restarts

    def well(self, for_s: float) -> None:
        if for_s >= self.settings.health_s:
            self.deaths = 0

    def add(self) -> float:
        """It died. Returns the pause before the next start."""
        self.deaths += 1
        doubled = min(self.deaths - 2, 64)  # No float holds many more.
        pause = self.settings.backoff_s * 2.0**doubled if self.deaths > 1 else 0.0
        return min(pause, self.settings.max_backoff_s)


class Phase(StrEnum):
    STARTING = "starting"
    PROBING = "probing"
    READY = "ready"
    STALLED = "stalled"
    LEAVING = "leaving"
    """Gets no more work and goes when it has finished."""


@dataclass(slots=True, eq=False)
class Life:
    """One worker process."""

    slot: int
    number: int
    phase: Phase
    began: float
    peer: bytes = b""
    last_beat: float = 0.0
    ready_since: float | None = None
    loop_age_s: float = 0.0
    stack: str = ""
    vitals: dict[str, float] = field(default_factory=dict)
    capacity: int = 0
    """Rollouts at once, where it brings its own number."""

    @property
    def name(self) -> str:
        return f"worker {self.slot}.{self.number}" if self.slot != GUEST else f"joined worker {self.number:x}"

    def well_s(self, now: float) -> float:
        """How long ago it proved itself; 0 if it never did."""
        return now - self.ready_since if self.ready_since is not None else 0.0


@dataclass(slots=True, eq=False)
class Slot:
    number: int
    record: Record
    due: float = 0.0


@dataclass(frozen=True, slots=True)
class Lost:
    life: Life
    why: str


class Happening(msgspec.Struct, frozen=True):
    """Something of note in the life of a worker."""

    at: float
    """By the broker's clock, which on one machine is everybody's monotonic clock."""
    what: str
    slot: int
    life: int
    why: str = ""


class SlotsSpent(Exception):
    """A slot's workers died more often than they may."""


class Slots:
    def __init__(self, count: int, settings: SlotSettings, now: float) -> None:
        self.settings = settings
        self._slots = {number: Slot(number, Record(settings), now) for number in range(count)}
        self._lives: dict[tuple[int, int], Life] = {}
        self._born = 0
        self.happenings: deque[Happening] = deque(maxlen=HAPPENINGS)
        """The latest, oldest first."""

    def __repr__(self) -> str:
        phases = [life.phase.value for life in self._lives.values()]
        told = ", ".join(f"{phases.count(phase)} {phase}" for phase in dict.fromkeys(phases)) or "none alive"
        return f"<Slots {len(self._slots)}: {told}>"

    @property
    def lives(self) -> list[Life]:
        return list(self._lives.values())

    @property
    def count(self) -> int:
        return len(self._slots)

    @property
    def ready(self) -> bool:
        return any(life.phase is Phase.READY for life in self._lives.values())

    def life(self, slot: int, number: int) -> Life | None:
        return self._lives.get((slot, number))

    def of_peer(self, peer: bytes) -> Life | None:
        return next((life for life in self._lives.values() if life.peer == peer), None)

    def scale(self, count: int, now: float) -> list[Life]:
        """Have `count` slots. Returns the lives that are to leave."""
        for number in range(count):
            self._slots.setdefault(number, Slot(number, Record(self.settings), now))
        surplus = [number for number in self._slots if number >= count]
        for number in surplus:
            del self._slots[number]
        leaving = [life for life in self._lives.values() if life.slot in surplus and life.phase is not Phase.LEAVING]
        for life in leaving:
            life.phase = Phase.LEAVING
        return leaving

    def leave(self, slot: int | None) -> list[Life]:
        """The lives of one slot, or of all, are to leave; successors follow at once."""
        leaving = [
            life for life in self._lives.values() if slot in (None, life.slot) and life.phase is not Phase.LEAVING
        ]
        for life in leaving:
            life.phase = Phase.LEAVING
        return leaving

    def due(self, now: float, room: int = sys.maxsize) -> list[Life]:
        """Lives to start now, no more than there is room for."""
        occupied = {life.slot for life in self._lives.values() if life.phase is not Phase.LEAVING}
        started: list[Life] = []
        for slot in self._slots.values():
            if slot.number in occupied or slot.due > now or len(started) >= room:
                continue
            self._born += 1
            life = Life(slot.number, self._born, Phase.STARTING, now, last_beat=now)
            self._lives[slot.number, life.number] = life
            started.append(life)
        return started

    def joined(self, number: int, capacity: int, now: float) -> Life | None:
        """A worker that we did not start wants to work here under a number that it drew. None where it may not."""
        guests = sum(life.slot == GUEST for life in self._lives.values())
        if (GUEST, number) in self._lives or guests >= MAX_GUESTS or capacity < 1:
            return None
        life = Life(GUEST, number, Phase.STARTING, now, last_beat=now, capacity=capacity)
        self._lives[GUEST, number] = life
        return life

    def arrived(self, life: Life, peer: bytes, now: float) -> None:
        life.peer, life.phase, life.last_beat = peer, Phase.PROBING, now

    def proven(self, life: Life, now: float) -> None:
        life.phase, life.ready_since = Phase.READY, now
        self._note(life, "ready", now)

    def beat(self, life: Life, loop_age_s: float, stack: str, vitals: dict[str, float], now: float) -> None:
        life.last_beat, life.loop_age_s, life.vitals = now, loop_age_s, vitals
        stalled = loop_age_s > self.settings.stall_after_s
        life.stack = stack if stalled else ""
        if life.phase is Phase.READY and stalled:
            life.phase = Phase.STALLED
            self._note(life, "stalled", now, stack)
        elif life.phase is Phase.STALLED and not stalled:
            life.phase = Phase.READY
        if life.phase is Phase.READY and life.slot in self._slots:
            self._slots[life.slot].record.well(life.well_s(now))

    def overgrown(self) -> list[Life]:
        """Ready lives that are past their budget, now marked as leaving. SlotsSpent if one was one too many."""
        budget = self.settings.memory_mb
        if budget <= 0:
            return []
        over = [life for life in self._lives.values() if life.phase is Phase.READY and _own_mb(life.vitals) > budget]
        for life in over:
            self._outgrown(life, life.vitals["rss_mb"])
        return over

    def _outgrown(self, life: Life, rss_mb: float) -> None:
        now = life.last_beat  # Which told its size.
        life.phase = Phase.LEAVING
        well_s = life.well_s(now)
        why = f"it held {rss_mb:.0f} MB after {well_s:.0f} s, and slots.memory_mb allows {self.settings.memory_mb:g}"
        self._note(life, "relieved", now, why)
        if well_s < self.settings.health_s and not life.vitals.get("done"):
            self._record(life, "had to be replaced", why, now)

    def silent(self, now: float) -> list[Life]:
        """Lives whose pulse has stopped."""
        return [life for life in self._lives.values() if self._is_silent(life, now)]

    def _is_silent(self, life: Life, now: float) -> bool:
        return life.phase is not Phase.STARTING and now - life.last_beat > self.settings.silence_s

    def hopeless(self, now: float) -> list[Lost]:
        """Lives that are to be ended: silent, never ready, or stalled for too long."""
        return [Lost(life, why) for life in self._lives.values() if (why := self._verdict(life, now))]

    def _verdict(self, life: Life, now: float) -> str:
        settings = self.settings
        if life.phase in (Phase.STARTING, Phase.PROBING) and now - life.began > settings.start_timeout_s:
            return f"it was not ready within {settings.start_timeout_s:g} s"
        if self._is_silent(life, now):
            return f"its pulse was silent for {now - life.last_beat:.1f} s"
        if life.loop_age_s > settings.stall_limit_s:
            return f"its loop stood still for {life.loop_age_s:.0f} s at:\n{life.stack}"
        return ""

    def buried(self, life: Life, why: str, now: float) -> None:
        """It is over. One that was asked to leave leaves no mark on its slot; SlotsSpent if this was one too many."""
        self._lives.pop((life.slot, life.number), None)
        self._note(life, "left" if life.phase is Phase.LEAVING else "died", now, why)
        if life.phase is not Phase.LEAVING:
            self._record(life, "died", why, now)

    def _record(self, life: Life, what: str, why: str, now: float) -> None:
        slot = self._slots.get(life.slot)
        if slot is None:
            return
        slot.due = now + slot.record.add()
        if slot.record.spent:
            raise SlotsSpent(f"worker {slot.number} {what} {slot.record.deaths} times in a row; the last time {why}")

    def _note(self, life: Life, what: str, now: float, why: str = "") -> None:
        self.happenings.append(Happening(now, what, life.slot, life.number, why))


def _own_mb(vitals: dict[str, float]) -> float:
    """The shelf has a bound of its own, and gives its memory back by itself."""
    return vitals.get("rss_mb", 0.0) - vitals.get("shelf_mb", 0.0)
