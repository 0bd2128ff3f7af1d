"""Numbers into bins of equal sums: greedy, Karmarkar-Karp, first fit, and a descent that mends what they leave.

All give the bin of each number. The loops are over numbers or over bins, and what is inside them is numpy; refinement
in pure Python takes seconds where this takes milliseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

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


def descend(sizes: Ints, where: Ints, bins: int, leaders: int, *, steps: int, expired: Expired) -> tuple[Ints, int]:
    """Even out the bins by moving one number, or swapping two, as long as that helps one of the heaviest bins and there
    are `steps` left. With `leaders` bins trained at a time, the heaviest of each such set is the one to help. Gives the
    partition, and the steps that it took."""
    where = where.copy()
    loads = loads_of(sizes, where, bins)
    for step in range(steps):
        if expired() or not _help_one(sizes, where, loads, leaders):
            return where, step
    return where, steps


def _help_one(sizes: Ints, where: Ints, loads: Ints, leaders: int) -> bool:
    heavy_first = np.argsort(-loads, kind="stable")
    return any(_help(sizes, where, loads, int(heavy)) for heavy in heavy_first[::leaders])


def _help(sizes: Ints, where: Ints, loads: Ints, heavy: int) -> bool:
    """Of all moves out of `heavy` and swaps with it, do the one after which the fuller of both bins is least full."""
    own = np.flatnonzero(where == heavy)
    partner_sizes = np.concatenate((sizes, np.zeros(len(loads), np.int64)))
    partner_bins = np.concatenate((where, np.arange(len(loads))))
    shifts = sizes[own, None] - partner_sizes[None, :]
    fuller = np.maximum(loads[heavy] - shifts, loads[partner_bins] + shifts)
    fuller[:, partner_bins == heavy] = loads[heavy]
    if not fuller.size or fuller.min() >= loads[heavy]:
        return False
    row, partner = np.unravel_index(int(np.argmin(fuller)), fuller.shape)
    item, shift, target = own[row], shifts[row, partner], partner_bins[partner]
    where[item] = target
    if partner < len(sizes):
        where[partner] = heavy
    loads[heavy] -= shift
    loads[target] += shift
    return True
