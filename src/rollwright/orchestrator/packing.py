"""Which rank trains which sample, and in which micro-batch.

Ranks that train together wait for each other after every micro-batch, so a step takes the sum, over micro-batches, of
the tokens of the fullest rank. Fewer micro-batches come first, then that sum: with as few micro-batches as fit, samples
are spread as evenly as is found in the time that is given. Every rank gets equally many micro-batches, some of which
may be empty. The heaviest come first, so that what does not fit into memory is known at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from rollwright.wire import UsageError
from rollwright.wire.arrays import Ids, Ints

from .partitions import Bins, Expired, descend, first_fit, greedy, karmarkar_karp, loads_of
from .samples import Sample

_STEPS = 1_200
"""Of refinement in all, so that a packing ends and is repeatable also where there is plenty of time."""
_ROUNDS = 200
"""Fresh starts from the best that was found, at most."""
_CLOSE_ENOUGH = 1.001
"""Over the least that is possible: there is little to gain by looking on."""


class PackSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For whom samples are packed."""

    ranks: int
    """Ranks of the trainer that see different data."""
    max_tokens: int
    """Of one micro-batch. A longer sample is alone in one."""
    budget_s: float = 0.2
    """Time for looking for a better packing."""

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.max_tokens < 1 or not self.budget_s >= 0:
            raise UsageError("pack: ranks and max_tokens must be 1 or more, and budget_s 0 or more")


class Packing(NamedTuple):
    ranks: Ids
    """Of each sample."""
    micros: Ids
    """Of each sample: its micro-batch on that rank."""
    micro_batches: int
    """Of each rank."""
    cost: int
    """Tokens that the fullest rank has in each micro-batch, in sum."""
    steps: int
    """Of refinement."""


def packed(samples: Sequence[Sample], settings: PackSettings) -> list[Sample]:
    """The samples with their places, in the order of rank and micro-batch, so that each micro-batch lies together."""
    lengths = [len(sample.ids) for sample in samples]
    packing = pack(lengths, ranks=settings.ranks, max_tokens=settings.max_tokens, budget_s=settings.budget_s)
    places = zip(packing.ranks.tolist(), packing.micros.tolist(), range(len(samples)), strict=True)
    return [msgspec.structs.replace(samples[index], rank=rank, micro=micro) for rank, micro, index in sorted(places)]


def pack(
    lengths: Sequence[int],
    *,
    ranks: int,
    max_tokens: int,
    budget_s: float = 0.2,
    clock: Callable[[], float] = time.monotonic,
) -> Packing:
    """Never worse than greedy, in micro-batches or else in cost. The same input gives the same packing, unless time
    runs out."""
    deadline = clock() + budget_s
    sizes = np.asarray(lengths, np.int64)
    alone, shared = np.flatnonzero(sizes > max_tokens), np.flatnonzero(sizes <= max_tokens)
    search = _Search(sizes[shared], ranks, max_tokens, lambda: clock() > deadline)
    for micro_batches in _counts(sizes, ranks, max_tokens):
        bins = ranks * micro_batches
        found = search.partition(bins - len(alone), sizes[alone])
        if found is not None:
            where = np.empty(len(sizes), np.int64)
            where[shared], where[alone] = found, np.arange(bins - len(alone), bins)
            return _placed(sizes, where, ranks, micro_batches, search.steps)
    raise AssertionError("a bin for each sample is room enough")


def _counts(sizes: Ints, ranks: int, max_tokens: int) -> Iterator[int]:
    """Numbers of micro-batches to try, fewest first."""
    fewest = max(1, -(-int(np.minimum(sizes, max_tokens).sum()) // (ranks * max_tokens)))
    yield from range(fewest, max(fewest, -(-len(sizes) // ranks)) + 1)


def _placed(sizes: Ints, where: Ints, ranks: int, micro_batches: int, steps: int) -> Packing:
    """Bins of like size are trained at the same time; within a micro-batch, the rank that has least gets most."""
    loads = loads_of(sizes, where, ranks * micro_batches)
    heavy_first = np.argsort(-loads, kind="stable").reshape(micro_batches, ranks)
    rank_of, micro_of = np.empty(len(loads), np.int32), np.empty(len(loads), np.int32)
    totals = np.zeros(ranks, np.int64)
    for micro, bins in enumerate(heavy_first):
        light_first = np.argsort(totals, kind="stable")
        rank_of[bins], micro_of[bins] = light_first, micro
        totals[light_first] += loads[bins]
    return Packing(rank_of[where], micro_of[where], micro_batches, int(loads[heavy_first[:, 0]].sum()), steps)


class _Search:
    """For partitions of the samples that share their bins with others."""

    def __init__(self, sizes: Ints, ranks: int, room: int, expired: Expired) -> None:
        self.steps = 0
        self._sizes = sizes
        self._ranks = ranks
        self._room = room
        self._expired = expired
        self._first_fit = first_fit(sizes, room)

    def partition(self, count: int, alone: Ints) -> Ints | None:
        """The best into so many bins beside those of `alone`; None if none was found that fits."""
        if count < 1:
            return None if count < 0 or len(self._sizes) else self._first_fit
        bins = Bins(count, self._room, self._ranks, alone)
        starts = [greedy(self._sizes, count)]
        if int(self._first_fit.max(initial=-1)) < count:
            starts.append(self._first_fit)
        if (differenced := karmarkar_karp(self._sizes, count, self._expired)) is not None:
            starts.append(differenced)
        starts += [self._descend(where, bins) for where in starts]
        cost, best = min((self._cost(where, bins), index) for index, where in enumerate(starts))
        cost, where = self._look_around(starts[best], cost, bins)
        return where if cost[0] == 0 else None

    def _look_around(self, where: Ints, cost: tuple[int, int], bins: Bins) -> tuple[tuple[int, int], Ints]:
        """Shake the best that is known and descend again. The dice are loaded: the same input has the same throws."""
        dice = np.random.default_rng(len(self._sizes))
        total = int(self._sizes.sum() + bins.alone.sum())
        least = max(-(-total // self._ranks), int(max(self._sizes.max(initial=0), bins.alone.max(initial=0))))
        for _ in range(_ROUNDS):
            if self._expired() or self.steps >= _STEPS or (cost[0] == 0 and cost[1] <= least * _CLOSE_ENOUGH):
                break
            shaken = where.copy()
            moved = dice.integers(len(shaken), size=min(len(shaken), 2 + len(shaken) // 16))
            shaken[moved] = dice.integers(bins.count, size=len(moved))
            shaken = self._descend(shaken, bins)
            if (other := self._cost(shaken, bins)) < cost:
                cost, where = other, shaken
        return cost, where

    def _descend(self, where: Ints, bins: Bins) -> Ints:
        where, taken = descend(self._sizes, where, bins, steps=_STEPS - self.steps, expired=self._expired)
        self.steps += taken
        return where

    def _cost(self, where: Ints, bins: Bins) -> tuple[int, int]:
        return bins.cost(bins.loads(self._sizes, where))
