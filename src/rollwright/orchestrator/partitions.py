"""Numbers into bins of equal sums: greedy, Karmarkar-Karp, first fit, and a descent that mends what they leave.

All give the bin of each number. The loops are over numbers or over bins, and what is inside them is numpy; refinement
in pure Python takes seconds where this takes milliseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from rollwright.wire.arrays import Ints

Expired = Callable[[], bool]
"""Whether the time is up."""


def greedy(sizes: Ints, bins: int) -> Ints:
    """Largest first, each into the bin that is emptiest."""
    where = np.zeros(len(sizes), np.int64)
    emptiest = [(0, index) for index in range(bins)]
    for item in np.argsort(-sizes, kind="stable").tolist():
        load, index = emptiest[0]
        where[item] = index
        heapq.heapreplace(emptiest, (load + int(sizes[item]), index))
    return where


def first_fit(sizes: Ints, room: int) -> Ints:
    """Largest first, each into the first bin that has room for it; as many bins as that takes."""
    where = np.zeros(len(sizes), np.int64)
    free = np.full(len(sizes), room, np.int64)
    for item in np.argsort(-sizes, kind="stable").tolist():
        where[item] = np.argmax(free >= sizes[item])
        free[where[item]] -= sizes[item]
    return where


def karmarkar_karp(sizes: Ints, bins: int, expired: Expired) -> Ints | None:
    """Largest differencing: the two partitions that are most uneven are joined, the heaviest bins of one with the
    lightest of the other, until one is left. None if the time is up before."""
    # An entry is (-spread, number, loads in descending order, items, bin of each item).
    heap: list[tuple[int, int, Ints, Ints, Ints]] = []
    for item, size in enumerate(sizes.tolist()):
        loads = np.zeros(bins, np.int64)
        loads[0] = size
        heap.append((-size, item, loads, np.array([item]), np.array([0])))
    heapq.heapify(heap)
    while len(heap) > 1:
        if expired():
            return None
        _, number, loads, items, places = heapq.heappop(heap)
        _, _, other_loads, other_items, other_places = heapq.heappop(heap)
        joined = loads + other_loads[::-1]
        order = np.argsort(-joined, kind="stable")
        rank = np.empty(bins, np.int64)
        rank[order] = np.arange(bins)
        joined = joined[order]
        places = rank[np.concatenate((places, bins - 1 - other_places))]
        spread = int(joined[-1] - joined[0])
        heapq.heappush(heap, (spread, number, joined, np.concatenate((items, other_items)), places))
    where = np.zeros(len(sizes), np.int64)
    for *_, items, places in heap:
        where[items] = places
    return where


def loads_of(sizes: Ints, where: Ints, bins: int) -> Ints:
    return np.bincount(where, weights=sizes, minlength=bins).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Bins:
    """What numbers are put into. Bins are emptied in sets of `ranks`, heaviest first, and a set takes as long as its
    heaviest one: that is the leader of the set."""

    count: int
    room: int
    ranks: int
    alone: Ints
    """Loads of further bins, which take part in the sets and cannot be changed."""

    def loads(self, sizes: Ints, where: Ints) -> Ints:
        return loads_of(sizes, where, self.count)

    def cost(self, loads: Ints) -> tuple[int, int]:
        """What does not fit, then the sum of the leaders."""
        leaders = np.sort(np.concatenate((loads, self.alone)))[::-1][:: self.ranks]
        return int(np.maximum(loads - self.room, 0).sum()), int(leaders.sum())


def descend(sizes: Ints, where: Ints, bins: Bins, *, steps: int, expired: Expired) -> tuple[Ints, int]:
    """Move one number, or swap two, as long as that helps and there are `steps` left. Gives the partition, and the
    steps that it took."""
    where = where.copy()
    loads = bins.loads(sizes, where)
    for step in range(steps):
        if expired() or not _step(sizes, where, loads, bins):
            return where, step
    return where, steps


def _step(sizes: Ints, where: Ints, loads: Ints, bins: Bins) -> bool:
    if int(loads.max()) > bins.room:
        return _change(sizes, where, loads, int(loads.argmax()), _evened)
    sets = _Sets(loads, bins)
    helped = (
        _change(sizes, where, loads, heavy, partial(sets.relieved, place))
        for place, heavy in enumerate(sets.heaviest)
        if heavy < bins.count
    )
    return any(helped)


class _Sets:
    """Which bins are emptied together, as long as none of them changes."""

    def __init__(self, loads: Ints, bins: Bins) -> None:
        every = np.concatenate((loads, bins.alone))
        heavy_first = np.argsort(-every, kind="stable")
        self.heaviest: list[int] = heavy_first[:: bins.ranks].tolist()
        self._room = bins.room
        self._set_of = np.empty(len(every), np.int64)
        self._set_of[heavy_first] = np.arange(len(every)) // bins.ranks
        self._leaders = every[heavy_first[:: bins.ranks]]
        alone_in_set = np.zeros_like(self._leaders)
        self._seconds = every[heavy_first[1 :: bins.ranks]] if bins.ranks > 1 else alone_in_set

    def relieved(self, place: int, shifts: Ints, load: int, others: Ints, targets: Ints) -> Ints:
        """By how much the sum of leaders falls if so much goes from the leader of a set to others; -1 where these
        would overflow."""
        lighter, heavier = np.maximum(load - shifts, self._seconds[place]), others + shifts
        within = load - np.maximum(lighter, heavier)
        across = load - lighter - np.maximum(heavier - self._leaders[self._set_of[targets]], 0)
        fall = np.where(self._set_of[targets] == place, within, across)
        return np.where(heavier > self._room, -1, fall)


def _evened(shifts: Ints, load: int, others: Ints, targets: Ints) -> Ints:
    """By how much the fuller of two bins falls."""
    falls: Ints = load - np.maximum(load - shifts, others + shifts)
    return falls


def _change(sizes: Ints, where: Ints, loads: Ints, heavy: int, gain: Callable[[Ints, int, Ints, Ints], Ints]) -> bool:
    """Of all moves out of `heavy` and swaps with it, do the one that gains most; of those, the one that evens most."""
    own = np.flatnonzero(where == heavy)
    partner_sizes = np.concatenate((sizes, np.zeros(len(loads), np.int64)))
    targets = np.concatenate((where, np.arange(len(loads))))
    shifts = sizes[own, None] - partner_sizes[None, :]
    load, others = int(loads[heavy]), loads[targets]
    gains = gain(shifts, load, others, targets)
    evening = shifts * (load - others - shifts)
    gains = np.where((shifts > 0) & (targets != heavy) & (evening > 0), gains, -1)
    if not gains.size or int(gains.max()) < 0:
        return False
    best = np.where(gains == gains.max(), evening, -1)
    row, partner = np.unravel_index(int(best.argmax()), best.shape)
    shift, target = shifts[row, partner], targets[partner]
    where[own[row]] = target
    if partner < len(sizes):
        where[partner] = heavy
    loads[heavy] -= shift
    loads[target] += shift
    return True
