"""One plain line per snapshot, for a person who watches a terminal or a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from typing import TextIO

from rollwright.telemetry.histogram import HistogramSummary
from rollwright.telemetry.metrics import MetricsSnapshot, Point

from .flat import key_of


def line_of(snapshot: MetricsSnapshot, only: Collection[str] = ()) -> str:
    """`12:30:05 rollouts=12 turn_seconds=p50 0.4 p99 1.2 of 96`. An empty `only` means every name."""
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.time))
    chosen = [point for point in snapshot.points if not only or point.name in only]
    return " ".join([clock, *(f"{key_of(point)}={_value(point)}" for point in chosen)])


def _value(point: Point) -> str:
    if isinstance(point.value, HistogramSummary):
        return f"p50 {point.value.p50:.4g} p99 {point.value.p99:.4g} of {point.value.count}"
    return f"{point.value:.6g}"


class ConsoleSink:
    """Writes to stderr unless told otherwise; stdout is for results. It does not own, and never closes, the stream."""

    def __init__(self, only: Collection[str] = (), stream: TextIO | None = None) -> None:
        self._only = frozenset(only)
        self._stream = stream

    def open(self) -> None:
        """Nothing to open: the stream is looked up at each line, because programs replace sys.stderr."""

    def write(self, snapshot: MetricsSnapshot) -> None:
        stream = self._stream or sys.stderr
        stream.write(line_of(snapshot, self._only) + "\n")
        stream.flush()

    def close(self) -> None:
        """The stream belongs to somebody else."""
