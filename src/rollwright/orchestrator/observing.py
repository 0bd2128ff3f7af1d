"""The numbers of a run, for every sink: what is in flight, what waits, how stale, and how late the loop is."""

from __future__ import annotations

import msgspec

from rollwright.telemetry import LoopLagMonitor, Metrics

from .loop import Orchestrator
from .reports import StepReport


def publish_run(metrics: Metrics, orchestrator: Orchestrator, monitor: LoopLagMonitor) -> None:
    """From now on every snapshot of `metrics` shows them. Read in the pump's thread, so only plain counts."""

    def collect() -> None:
        planner = orchestrator.planner
        told = {
            "step": planner.step,
            "policy_version": planner.version,
            "rollouts_in_flight": planner.in_flight,
            "rollouts_ready": planner.ready,
            "buffered_bytes": planner.buffered_bytes,
            "landing_bytes": orchestrator.arriving.bytes,
            "concurrency_limit": orchestrator.concurrency.limit,
            "rollouts_dispatched": planner.accounts.dispatched,
            "rollouts_trained": planner.accounts.trained,
        }
        for name, value in told.items():
            metrics.gauge(name, "Of the run, now.").set(value)
        for name, book in (
            ("rollouts_dropped", planner.accounts.dropped),
            ("rollouts_failed", planner.accounts.failed),
        ):
            for reason, count in tuple(book.items()):
                metrics.gauge(name, "So far, by reason.", reason=reason).set(count)
        for name, count in tuple(planner.caught.items()):
            metrics.gauge("rollouts_caught", "By each filter, removed or not.", filter=name).set(count)
        seen = monitor.take_interval("metrics")
        _lag(metrics, {"p50": seen.p50_s, "p90": seen.p90_s, "p99": seen.p99_s, "max": seen.max_s}, "interval")
        metrics.gauge("event_loop_lag", _LAG, stat="blocked", over="interval").set(seen.blocked_fraction)

    metrics.collect_with(collect)


def publish_step(metrics: Metrics, report: StepReport) -> None:
    """The last step, until there is a newer one."""
    for name, value in msgspec.structs.asdict(report).items():
        if isinstance(value, int | float) and not name.startswith("lag_"):
            metrics.gauge(f"step_{name}" if name != "step" else "step_shipped", "Of the last step.").set(value)
    _lag(
        metrics,
        {"p50": report.lag_p50_s, "p90": report.lag_p90_s, "p99": report.lag_p99_s, "max": report.lag_max_s},
        "step",
    )
    metrics.gauge("event_loop_lag", _LAG, stat="blocked", over="step").set(report.lag_blocked)


_LAG = "How late the event loop is, in seconds and weighted by time; blocked is the share of moments it was away."


def _lag(metrics: Metrics, values: dict[str, float], over: str) -> None:
    for stat, value in values.items():
        metrics.gauge("event_loop_lag", _LAG, stat=stat, over=over).set(value)
