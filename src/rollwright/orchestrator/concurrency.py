"""How many rollouts may be in flight: as many as the engine digests. Plain code with time as a parameter.

Where the engine tells its queue and how full its cache is, these decide: a queue means that more rollouts only wait.
Otherwise the pace decides: calls that take much longer than the quickest of late are standing in a queue that nobody
tells about. Up by steps, down by a factor, with a pause after each change long enough for it to show.
"""

from __future__ import annotations

import msgspec

from rollwright.wire import UsageError

_MEMORY_S = 900.0
"""In this time the quickest call of late counts as twice as slow."""


class ConcurrencySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many training rollouts are in flight at once."""

    initial: int = 256
    """Rollouts at the start."""
    least: int = 8
    most: int = 4096
    adaptive: bool = True
    """Follow the engine; false keeps `initial`."""
    full_cache: float = 0.95
    """A share of the engine's cache above which there are fewer rollouts."""
    queue_share: float = 0.1
    """Calls that wait at the engine, as a share of the rollouts in flight, above which there are fewer."""
    slow_factor: float = 2.0
    """Where the engine tells nothing: how much longer than the quickest of late a call may take."""
    settle_s: float = 10.0
    """Seconds between two changes."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.initial <= self.most:
            raise UsageError("concurrency needs 1 <= least <= initial <= most")
        if self.slow_factor <= 1 or self.settle_s <= 0 or not 0 < self.full_cache <= 1 or self.queue_share < 0:
            raise UsageError("concurrency needs slow_factor > 1, settle_s > 0, 0 < full_cache <= 1, queue_share >= 0")


class EngineGauge(msgspec.Struct, frozen=True):
    """What an engine tells about itself."""

    running: int = 0
    waiting: int = 0
    cache: float = 0.0
    """Share of the key-value cache in use."""


class Concurrency:
    def __init__(self, settings: ConcurrencySettings, limit: int | None = None) -> None:
        self._settings = settings
        self.limit = min(max(limit or settings.initial, settings.least), settings.most)
        self._changed_at = float("-inf")
        self._quickest_s = float("inf")
        self._pace_s = 0.0
        self._told_at = 0.0
        self._told = False
        """Whether the engine has ever told its queue; then the pace is not asked."""

    def __repr__(self) -> str:
        return f"<Concurrency {self.limit} rollouts>"

    def gauge(self, gauge: EngineGauge, in_flight: int, now: float) -> None:
        self._told = True
        queued = gauge.waiting > self._settings.queue_share * max(in_flight, 1)
        crowded = queued or gauge.cache > self._settings.full_cache
        self._decide(crowded, in_flight, now)

    def took(self, seconds: float, in_flight: int, now: float) -> None:
        """A call took so long at the engine."""
        # The quickest is forgotten slowly, so that answers that grow longer are not taken for a queue for ever.
        forgotten = 2 ** ((now - self._told_at) / _MEMORY_S) if self._told_at else 1.0
        self._quickest_s = min(self._quickest_s * forgotten, seconds)
        self._told_at = now
        self._pace_s = seconds if not self._pace_s else 0.9 * self._pace_s + 0.1 * seconds
        if not self._told:
            self._decide(self._pace_s > self._settings.slow_factor * self._quickest_s, in_flight, now)

    def _decide(self, crowded: bool, in_flight: int, now: float) -> None:
        settings = self._settings
        if not settings.adaptive or now - self._changed_at < settings.settle_s:
            return
        # A limit that nobody leans on says nothing about the engine, so it is not raised.
        if crowded:
            limit = int(self.limit * 0.8)
        elif in_flight >= 0.9 * self.limit:
            limit = self.limit + max(self.limit // 10, 1)
        else:
            return
        self.limit = min(max(limit, settings.least), settings.most)
        self._changed_at = now
