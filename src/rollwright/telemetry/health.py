"""Puts a process's own health into its metrics: loop lag, stalls, memory."""

from __future__ import annotations

from .lag import LoopLagMonitor
from .memory import MemoryTrimmer, peak_rss_bytes, rss_bytes
from .metrics import Metrics
from .watchdog import StallKind


def publish_health(
    metrics: Metrics, monitor: LoopLagMonitor | None = None, trimmer: MemoryTrimmer | None = None
) -> None:
    """From now on every snapshot of `metrics` shows these. The monitor must be entered before the next snapshot."""
    metrics.collect_with(lambda: _memory(metrics))
    if monitor is not None:
        metrics.collect_with(lambda: _lag(metrics, monitor))
    if trimmer is not None:
        metrics.collect_with(lambda: _trims(metrics, trimmer))


def _memory(metrics: Metrics) -> None:
    metrics.gauge("process_rss_bytes", "Resident memory.").set(rss_bytes())
    metrics.gauge("process_peak_rss_bytes", "The most resident memory so far.").set(peak_rss_bytes())


def _lag(metrics: Metrics, monitor: LoopLagMonitor) -> None:
    seen = monitor.snapshot()
    help_text = "How late the event loop is, weighted by time, since the start."
    for name, value in (("0.5", seen.p50_s), ("0.9", seen.p90_s), ("0.99", seen.p99_s), ("1", seen.max_s)):
        metrics.gauge("loop_lag_seconds", help_text, quantile=name).set(value)
    metrics.gauge("loop_blocked_fraction", "Share of moments at which the loop was away.").set(seen.blocked_fraction)
    counts = monitor.stall_counts
    for kind in StallKind:
        metrics.gauge("loop_stalls", "Stalls so far, by cause.", kind=kind.value).set(counts.get(kind.value, 0))


def _trims(metrics: Metrics, trimmer: MemoryTrimmer) -> None:
    stats = trimmer.stats
    metrics.gauge("memory_trimmer_enabled", "0 where the C library cannot trim.").set(stats.enabled)
    metrics.gauge("memory_trims", "Times that free memory was given back.").set(stats.trims)
    metrics.gauge("memory_trimmed_bytes", "How much was given back.").set(stats.freed_bytes)
