"""Numbers that a process tells about itself: counters, gauges, histograms, each with labels.

Getting a series costs a lookup, changing it does not: keep the object where the path is hot. Memory is bounded: a
histogram keeps buckets, and a name keeps at most `max_series` label sets, after which new ones share one series whose
labels say "other". Nothing here writes anywhere; see `pump` and `sinks`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar, cast

import msgspec

from .histogram import HistogramSummary, LogHistogram

Labels = tuple[tuple[str, str], ...]

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Point(msgspec.Struct, frozen=True):
    """One series at one moment."""

    name: str
    kind: Kind
    labels: Labels
    value: float | HistogramSummary
    help: str = ""


class MetricsSnapshot(msgspec.Struct, frozen=True):
    """All series at one moment, ordered by name, then by labels."""

    time: float
    """Seconds since the epoch."""
    points: tuple[Point, ...]


class Counter:
    """Only grows. Any thread may use it."""

    kind = Kind.COUNTER
    __slots__ = ("_lock", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        if not amount >= 0:
            raise ValueError(f"a counter grows by {amount}; use a gauge for what also falls")
        with self._lock:
            self._value += amount

    def read(self) -> float:
        return self._value


class Gauge:
    """Goes up and down. Any thread may use it."""

    kind = Kind.GAUGE
    __slots__ = ("_lock", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value = 0.0

    def set(self, value: float) -> None:
        self._value = float(value)

    def inc(self, amount: float = 1.0) -> None:
        with self._lock:
            self._value += amount

    def dec(self, amount: float = 1.0) -> None:
        self.inc(-amount)

    def read(self) -> float:
        return self._value


class Histogram:
    """A distribution of non-negative values. What is no finite number is left out. Any thread may use it."""

    kind = Kind.HISTOGRAM
    __slots__ = ("_lock", "_values")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values = LogHistogram()

    def observe(self, value: float) -> None:
        with self._lock:
            self._values.add(value)

    def read(self) -> HistogramSummary:
        with self._lock:
            return self._values.summary()


Series = Counter | Gauge | Histogram
S = TypeVar("S", Counter, Gauge, Histogram)


class _Family:
    """All series of one name."""

    def __init__(self, kind: Kind, help_text: str, label_names: tuple[str, ...]) -> None:
        self.kind = kind
        self.help = help_text
        self.label_names = label_names
        self.series: dict[Labels, Series] = {}


class Metrics:
    """The registry. One per process is usual; tests make their own."""

    def __init__(self, *, max_series: int = 1000) -> None:
        self._max_series = max_series
        self._lock = threading.Lock()
        self._families: dict[str, _Family] = {}
        # What was asked for before, in the words it was asked with: no sorting and no lock the second time.
        self._known: dict[tuple[str, tuple[tuple[str, str], ...]], Series] = {}
        self._collectors: list[Callable[[], None]] = []
        self._overflowed = self.counter("metrics_overflowed_total", "Series refused, because their name has too many.")

    def counter(self, name: str, help: str = "", /, **labels: str) -> Counter:
        return self._series(Counter, name, help, labels)

    def gauge(self, name: str, help: str = "", /, **labels: str) -> Gauge:
        return self._series(Gauge, name, help, labels)

    def histogram(self, name: str, help: str = "", /, **labels: str) -> Histogram:
        return self._series(Histogram, name, help, labels)

    def collect_with(self, collector: Callable[[], None]) -> None:
        """Call `collector` before each snapshot, in the thread that takes it: for gauges that are read, not pushed."""
        with self._lock:
            self._collectors.append(collector)

    def snapshot(self) -> MetricsSnapshot:
        with self._lock:
            collectors = tuple(self._collectors)
        for collector in collectors:
            collector()
        with self._lock:
            rows = [
                (name, key, family, one)
                for name, family in self._families.items()
                for key, one in family.series.items()
            ]
        rows.sort(key=lambda row: row[:2])
        points = (Point(name, family.kind, key, one.read(), family.help) for name, key, family, one in rows)
        return MetricsSnapshot(time=time.time(), points=tuple(points))

    def _series(self, make: type[S], name: str, help_text: str, labels: dict[str, str]) -> S:
        words = (name, tuple(labels.items()))
        known = self._known.get(words)
        if type(known) is make:
            return known
        key = tuple(sorted(words[1]))
        with self._lock:
            family = self._family(make.kind, name, help_text, tuple(label for label, _ in key))
            found = family.series.get(key)
            if found is None:
                found = self._grow(family, key, make)
            # What overflowed is not remembered, so that this stays as bounded as the series are.
            if key in family.series:
                self._known[words] = found
        return cast(S, found)

    def _family(self, kind: Kind, name: str, help_text: str, label_names: tuple[str, ...]) -> _Family:
        family = self._families.get(name)
        if family is None:
            for word in (name, *label_names):
                if not _NAME.match(word):
                    raise ValueError(f"{word!r} is no metric or label name: letters, digits and underscores are")
            family = self._families[name] = _Family(kind, help_text, label_names)
        if family.kind is not kind or family.label_names != label_names:
            raise ValueError(
                f"metric {name} is a {family.kind} with labels {list(family.label_names)}, "
                f"now asked for as a {kind} with labels {list(label_names)}"
            )
        return family

    def _grow(self, family: _Family, key: Labels, make: type[S]) -> Series:
        if len(family.series) >= self._max_series:
            self._overflowed.inc()
            key = tuple((label, "other") for label, _ in key)
        return family.series.setdefault(key, make())
