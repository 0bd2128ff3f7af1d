"""Snapshots as flat name-to-number mappings, for sinks that know nothing of labels or histograms."""

from __future__ import annotations

from rollwright.telemetry.histogram import HistogramSummary
from rollwright.telemetry.metrics import MetricsSnapshot, Point

_PARTS = ("count", "sum", "min", "max", "p50", "p90", "p99")


def key_of(point: Point) -> str:
    """`name` or `name{label=value,...}`."""
    if not point.labels:
        return point.name
    return f"{point.name}{{{','.join(f'{label}={value}' for label, value in point.labels)}}}"


def flatten(snapshot: MetricsSnapshot) -> dict[str, float]:
    """Every number under its own key; a histogram gives seven, as `key.count` ... `key.p99`."""
    flat: dict[str, float] = {}
    for point in snapshot.points:
        key = key_of(point)
        if isinstance(point.value, HistogramSummary):
            flat.update({f"{key}.{part}": getattr(point.value, part) for part in _PARTS})
        else:
            flat[key] = point.value
    return flat
