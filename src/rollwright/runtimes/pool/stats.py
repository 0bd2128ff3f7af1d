"""The pool's numbers: what it did, what it holds, and how long that took."""

from __future__ import annotations

import msgspec

from rollwright.telemetry.histogram import LogHistogram

from .boxes import Phase
from .placement import Placement


class PoolStats(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a pool. Times are within 9 % of the exact ones."""

    idle: int
    leased: int
    making: int
    resetting: int
    ending: int
    waiting: int
    hits: int
    """Leases that found a clean box at once."""
    misses: int
    """Leases that had to wait for one."""
    creates: int
    create_failures: int
    resets: int
    """Resets that left the box as it was after its start, proven by a look at it."""
    quarantines: int
    """Boxes that were freed because a reset failed or could not be proven."""
    evictions: int
    """Boxes that were freed because of their age, their uses, idleness, or to make room for others."""
    deaths: int
    """Boxes that no longer answered when they were to be handed out."""
    unfreed: int
    """Boxes whose end failed; the journal still has them, and a sweep frees them."""
    claim_p50_ms: float
    claim_p99_ms: float
    """From the wish to the box in hand, waiting included."""
    reset_p50_ms: float
    reset_p99_ms: float
    """Reset and the look that proves it."""


def stats_of(placement: Placement, claims_s: LogHistogram, resets_s: LogHistogram) -> PoolStats:
    counts, books = placement.counts, placement.books
    counted = ("hits", "misses", "creates", "create_failures", "resets", "quarantines", "evictions", "deaths")
    return PoolStats(
        **{phase.value: counts[phase] for phase in Phase},
        **{name: books[name] for name in (*counted, "unfreed")},
        waiting=placement.waiting,
        claim_p50_ms=claims_s.quantile(0.5) * 1e3,
        claim_p99_ms=claims_s.quantile(0.99) * 1e3,
        reset_p50_ms=resets_s.quantile(0.5) * 1e3,
        reset_p99_ms=resets_s.quantile(0.99) * 1e3,
    )
