"""A histogram whose memory does not grow with what it is told: eight buckets per power of two.

It keeps counts, so a quantile is known to within one bucket (9 %), the count, the sum, the least and the greatest
exactly. It does not lock: whoever shares one between threads does.
"""

from __future__ import annotations

import math

import msgspec

STEPS = 8
"""Buckets per power of two."""


class HistogramSummary(msgspec.Struct, frozen=True):
    """What a histogram holds at one moment. An empty one is all zeros."""

    count: int = 0
    sum: float = 0.0
    min: float = 0.0
    max: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    octaves: tuple[tuple[float, int], ...] = ()
    """(bound, how many are <= bound) for every power of two of the range. The bounds never change."""


def ramp_length(top: float, step: float) -> int:
    """How many of top, top - step, top - 2 step, ... are not negative."""
    return math.floor(top / step) + 1


def ramp_above(top: float, step: float, bound: float) -> int:
    """How many of top, top - step, ... (down to zero) are greater than `bound`."""
    return min(max(math.ceil((top - bound) / step), 0), ramp_length(top, step))


class LogHistogram:
    """Counts of non-negative numbers. Values at or under the range share one bucket, values over it the last one."""

    __slots__ = ("_first", "_last", "_low", "counts", "invalid", "max", "min", "sum")

    def __init__(self, low: float = 2.0**-20, high: float = 2.0**30) -> None:
        self._first = math.floor(math.log2(low))
        self._last = math.ceil(math.log2(high))
        self._low = 2.0**self._first
        # Slot 0 is (-inf, low]; slot k is the k-th step above; the last slot also takes what is over the range.
        self.counts = [0] * ((self._last - self._first) * STEPS + 1)
        self.clear()

    def clear(self) -> None:
        self.counts[:] = [0] * len(self.counts)
        self.sum = 0.0
        self.min = math.inf
        self.max = -math.inf
        self.invalid = 0
        """Values that were no finite number: counted here, kept out of everything else."""

    @property
    def count(self) -> int:
        return sum(self.counts)

    def _slot(self, value: float) -> int:
        if value <= self._low:
            return 0
        return min(math.ceil((math.log2(value) - self._first) * STEPS), len(self.counts) - 1)

    def _bound(self, slot: int) -> float:
        """The greatest value that belongs into `slot`."""
        return float(2.0 ** (self._first + slot / STEPS))

    def add(self, value: float, count: int = 1) -> None:
        if not math.isfinite(value):
            self.invalid += count
            return
        self.counts[self._slot(value)] += count
        self.sum += value * count
        # Comparing costs a third of calling min and max, and this is the hot path of every observation.
        if value < self.min:
            self.min = value
        if value > self.max:
            self.max = value

    def add_ramp(self, top: float, step: float) -> int:
        """Add top, top - step, ... down to zero; return how many. The work depends on the buckets, not on them."""
        length = ramp_length(top, step)
        if length == 1:
            self.add(top)
            return 1
        counted = 0
        for slot in range(self._slot(top), 0, -1):
            above = ramp_above(top, step, self._bound(slot - 1))
            self.counts[slot] += max(above - counted, 0)
            counted = max(above, counted)
        self.counts[0] += length - counted
        self.sum += length * top - step * length * (length - 1) / 2
        self.min = min(self.min, max(top - step * (length - 1), 0.0))
        self.max = max(self.max, top)
        return length

    def merge(self, other: LogHistogram) -> None:
        """Add everything that `other`, a histogram of the same range, holds."""
        for slot, count in enumerate(other.counts):
            self.counts[slot] += count
        self.sum += other.sum
        self.min = min(self.min, other.min)
        self.max = max(self.max, other.max)
        self.invalid += other.invalid

    def copy(self) -> LogHistogram:
        twin = LogHistogram(2.0**self._first, 2.0**self._last)
        twin.merge(self)
        return twin

    def quantile(self, q: float) -> float:
        """A value that a share `q` of all values does not exceed: at most one bucket too high. Zero when empty."""
        total = self.count
        if total == 0:
            return 0.0
        wanted = max(math.ceil(q * total), 1)
        seen = 0
        for slot, count in enumerate(self.counts):
            seen += count
            if seen >= wanted:
                top = slot == len(self.counts) - 1
                return self.max if top else max(min(self._bound(slot), self.max), self.min)
        return self.max

    def _octaves(self) -> tuple[tuple[float, int], ...]:
        pairs = []
        seen = 0
        for slot, count in enumerate(self.counts):
            seen += count
            if slot % STEPS == 0:
                pairs.append((self._bound(slot), seen))
        # The last slot also holds what is over the range, so its bound is no bound.
        return tuple(pairs[:-1])

    def summary(self) -> HistogramSummary:
        total = self.count
        if total == 0:
            return HistogramSummary(octaves=self._octaves())
        return HistogramSummary(
            count=total,
            sum=self.sum,
            min=self.min,
            max=self.max,
            p50=self.quantile(0.5),
            p90=self.quantile(0.9),
            p99=self.quantile(0.99),
            octaves=self._octaves(),
        )
