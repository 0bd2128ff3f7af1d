"""Which slice takes which worker, and what becomes of a slice that falls silent. No Ray here; time is a parameter.

A slice is a place for a supervisor, which has one life after the other. It is pending until its supervisor has spoken,
then it has seats. Ray may start a supervisor again by itself: its next report then bears another name. One that is
silent is given up and replaced by us, on another node. Both count as a death; after each the slice rests for a while,
and too many without health in between are the end of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from rollwright.serve.launching import Exit

from .settings import RaySettings

Key = tuple[int, int]
"""Slot and life of a worker."""


class Report(msgspec.Struct, frozen=True):
    """What a supervisor says of itself. It is asked several times a second."""

    name: str
    """Drawn anew whenever the supervisor is started."""
    node: str
    ended: tuple[tuple[int, Exit], ...] = ()
    """Workers that ended, numbered. They are told again until the supervisor hears that they were heard."""
    computing: tuple[Key, ...] = ()
    """Workers that used a CPU lately."""


@dataclass(slots=True, eq=False)
class Slice:
    number: int
    asked_at: float
    """When the supervisor was last asked, and has not answered yet."""
    name: str = ""
    """Of the supervisor that spoke last; empty while there is none."""
    node: str = ""
    heard_at: float = 0.0
    well_since: float = 0.0
    seen: int = 0
    deaths: int = 0
    due: float = 0.0
    spent: bool = False
    held: set[Key] = field(default_factory=set)
    computing: tuple[Key, ...] = ()


class Slices:
    def __init__(self, settings: RaySettings) -> None:
        self.settings = settings
        self._slices: dict[int, Slice] = {}
        self.last_words = ""
        self.suspects: dict[str, float] = {}
        """Nodes whose supervisors fell silent, and when: Ray may still take them for alive."""

    def __repr__(self) -> str:
        spoken = sum(bool(slice.name) for slice in self._slices.values())
        held = sum(len(slice.held) for slice in self._slices.values())
        return f"<Slices {spoken} of {len(self._slices)} there, {held} workers>"

    @property
    def all(self) -> list[Slice]:
        return list(self._slices.values())

    @property
    def spent(self) -> bool:
        """Whether there will never be room again."""
        return bool(self._slices) and all(slice.spent for slice in self._slices.values())

    def resize(self, workers: int, now: float) -> tuple[list[Slice], list[Slice]]:
        """Have slices for so many workers. Returns those that are new, and those that are no more; one that holds
        workers stays until it is empty."""
        wanted = -(-workers // self.settings.slice_workers)
        added = [Slice(number, now) for number in self._free_numbers(wanted - len(self._slices))]
        self._slices |= {slice.number: slice for slice in added}
        surplus = max(len(self._slices) - wanted, 0)
        idle = [slice for slice in reversed(self._slices.values()) if not slice.held][:surplus]
        for slice in idle:
            del self._slices[slice.number]
        return added, idle

    def _free_numbers(self, count: int) -> Iterable[int]:
        taken = set(self._slices)
        return [number for number in range(len(taken) + max(count, 0)) if number not in taken][: max(count, 0)]

    def room(self, now: float) -> int:
        return sum(self._seats_left(slice, now) for slice in self._slices.values())

    def _seats_left(self, slice: Slice, now: float) -> int:
        usable = slice.name and not slice.spent and slice.due <= now
        # One that is late to answer may be dead; workers are not sent there to find out.
        late = now - slice.heard_at > self.settings.silence_s / 3
        return self.settings.slice_workers - len(slice.held) if usable and not late else 0

    def place(self, key: Key, now: float) -> Slice | None:
        """The slice with the most room takes it; None where there is none."""
        best = max(self._slices.values(), key=lambda slice: self._seats_left(slice, now), default=None)
        if best is None or not self._seats_left(best, now):
            return None
        best.held.add(key)
        return best

    def holder(self, key: Key) -> Slice | None:
        return next((slice for slice in self._slices.values() if key in slice.held), None)

    def computing(self, now: float) -> tuple[Key, ...]:
        """Workers that were seen to compute by supervisors that were heard lately."""
        fresh = [slice for slice in self._slices.values() if now - slice.heard_at < self.settings.silence_s / 3]
        return tuple(key for slice in fresh for key in slice.computing)

    def heard(self, slice: Slice, report: Report, now: float) -> list[Exit]:
        """A supervisor answered. Returns the workers that ended."""
        exits: list[Exit] = []
        if slice.name and slice.name != report.name:
            exits = self._died(slice, f"the supervisor on node {slice.node[:8]} was started again", now)
        if not slice.name or slice.name != report.name:
            slice.name, slice.node, slice.well_since, slice.seen = report.name, report.node, now, 0
        if now - slice.well_since > self.settings.health_s:
            slice.deaths = 0
        slice.heard_at, slice.computing = now, report.computing
        for number, exit in report.ended:
            if number > slice.seen and (exit.slot, exit.life) in slice.held:
                slice.held.discard((exit.slot, exit.life))
                exits.append(exit)
            slice.seen = max(slice.seen, number)
        return exits

    def silent(self, now: float) -> list[Slice]:
        """Slices whose supervisor has spoken before and does not answer now."""
        limit = self.settings.silence_s
        return [slice for slice in self._slices.values() if slice.name and now - slice.heard_at > limit]

    def lost(self, slice: Slice, words: str, now: float) -> list[Exit]:
        """The supervisor is given up with its workers, which are returned. A new one may be made unless `spent`."""
        if slice.node:
            self.suspects[slice.node] = now
        exits = self._died(slice, words, now)
        slice.name, slice.node, slice.asked_at = "", "", now
        return exits

    def _died(self, slice: Slice, words: str, now: float) -> list[Exit]:
        settings = self.settings
        exits = [Exit(*key, words) for key in sorted(slice.held)]
        slice.held.clear()
        slice.computing = ()
        slice.deaths += 1
        self.last_words = words
        pause = settings.backoff_s * 2 ** (slice.deaths - 2) if slice.deaths > 1 else 0.0
        slice.due = now + min(pause, settings.max_backoff_s)
        slice.spent = slice.deaths > settings.max_restarts
        return exits
