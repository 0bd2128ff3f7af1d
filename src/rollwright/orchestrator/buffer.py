"""Rollouts that can be trained and wait for their batch. Numbers only; the samples lie where landing.py put them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from .groups import Arrival, Landed


class Ready(msgspec.Struct, frozen=True):
    """A rollout that can be trained."""

    group: int
    member: int
    arrival: Arrival
    advantage: float

    @property
    def key(self) -> tuple[int, int]:
        return self.group, self.member


class Buffer:
    """A group stays until the last of its rollouts has left; then its samples can go."""

    def __init__(self) -> None:
        self.bytes = 0
        self._ready: dict[tuple[int, int], Ready] = {}
        self._groups: dict[int, Landed] = {}
        self._waiting: dict[int, int] = {}
        """Rollouts of each group that are here or being shipped."""
        self._released: list[Landed] = []

    def __len__(self) -> int:
        return len(self._ready)

    def __contains__(self, key: tuple[int, int]) -> bool:
        return key in self._ready

    @property
    def waiting(self) -> tuple[Ready, ...]:
        return tuple(self._ready.values())

    @property
    def groups(self) -> tuple[Landed, ...]:
        return tuple(self._groups.values())

    def holds(self, group: int) -> bool:
        return group in self._groups

    def add(self, landed: Landed, rollouts: Iterable[Ready]) -> None:
        """The rollouts of a group that can be trained; a group without any is released at once."""
        number = landed.ticket.number
        self._groups[number] = landed
        self._waiting[number] = 0
        for ready in rollouts:
            self._ready[ready.key] = ready
            self._waiting[number] += 1
            self.bytes += ready.arrival.bytes
        self._release_if_empty(number)

    def oldest(self, count: int) -> list[Ready]:
        """The first so many in the order of dispatch."""
        return [self._ready[key] for key in sorted(self._ready)[:count]]

    def take(self, picks: Iterable[Ready]) -> None:
        """They go into a batch; their group stays until they `leave`."""
        for ready in picks:
            del self._ready[ready.key]

    def leave(self, group: int, member: int) -> None:
        """A rollout that was taken is shipped."""
        self.bytes -= self._groups[group].arrivals[member].bytes
        self._waiting[group] -= 1
        self._release_if_empty(group)

    def drop(self, rollouts: Iterable[Ready]) -> int:
        dropped = list(rollouts)
        self.take(dropped)
        for ready in dropped:
            self.leave(*ready.key)
        return len(dropped)

    def release(self, landed: Landed) -> None:
        """Samples that nobody waits for."""
        self._released.append(landed)

    def take_released(self) -> list[Landed]:
        released, self._released = self._released, []
        return released

    def _release_if_empty(self, group: int) -> None:
        if not self._waiting[group]:
            del self._waiting[group]
            self._released.append(self._groups.pop(group))


def whole_batch(buffer: Buffer, rollouts: int, tokens: int) -> list[Ready] | None:
    """The oldest rollouts that make a batch of so many rollouts or, where `tokens` is above 0, of as many as fit into
    so many tokens, one at least. None if there are not enough yet."""
    if not tokens:
        return buffer.oldest(rollouts) if len(buffer) >= rollouts else None
    waiting = buffer.oldest(rollouts)
    sums = np.cumsum([ready.arrival.tokens for ready in waiting])
    count = int(np.searchsorted(sums, tokens, side="right"))
    if count < len(waiting):
        return waiting[: max(count, 1)]
    return waiting if count and (count == rollouts or sums[-1] == tokens) else None
