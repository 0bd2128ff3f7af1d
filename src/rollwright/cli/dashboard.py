"""A run of the orchestrator while it goes: where the step stands, how the reward moves, what waits, how late it is."""

from __future__ import annotations

import time
from collections import deque

from rollwright.orchestrator import EvalReport, Orchestrator, StepReport
from rollwright.telemetry import LoopLagMonitor

from .table import Panel, span

_SPARKS = "▁▂▃▄▅▆▇█"
_REMEMBERED = 32
_LATE_S = 0.02


class Dashboard:
    """Gathers what the run reports; `panel` shows it together with what is seen at that moment."""

    def __init__(self, title: str, monitor: LoopLagMonitor) -> None:
        self._title = title
        self._monitor = monitor
        self._run: Orchestrator | None = None
        self._steps: deque[StepReport] = deque(maxlen=_REMEMBERED)
        self._evals: dict[str, EvalReport] = {}
        self._began = time.monotonic()

    def watch(self, run: Orchestrator) -> None:
        self._run = run

    def step(self, report: StepReport) -> None:
        self._steps.append(report)

    def evaluated(self, report: EvalReport) -> None:
        self._evals[report.source] = report

    def panel(self) -> Panel:
        assert self._run is not None
        planner = self._run.planner
        settings = planner.settings
        lag = self._monitor.snapshot()
        accounts = planner.accounts
        rows = [
            ("step", f"{planner.step} of {settings.steps}, policy version {planner.version}{self._held()}"),
            ("rollouts", f"{planner.in_flight} in flight of {self._run.concurrency.limit}, {planner.ready} ready"),
            ("buffer", f"{_mb(planner.buffered_bytes, settings.max_buffered_bytes)}{self._landing()}"),
            *self._timeline(),
            ("lost", _counts({**accounts.dropped, **accounts.failed})),
            *(
                (report.source, f"{report.reward_mean:.3f} at version {report.version}")
                for report in self._evals.values()
            ),
            ("time", span(time.monotonic() - self._began)),
            ("loop lag", f"p99 {lag.p99_s * 1e3:.1f} ms, max {lag.max_s * 1e3:.0f} ms"),
        ]
        alarming = {"loop lag"} if lag.p99_s > _LATE_S else set()
        if accounts.failed:
            alarming.add("lost")
        return Panel(self._title, planner.step, settings.steps, rows, frozenset(alarming))

    def _landing(self) -> str:
        assert self._run is not None
        arriving = self._run.arriving
        return f", {_mb(arriving.bytes, arriving.budget_bytes)} landing" if arriving.groups else ""

    def _held(self) -> str:
        assert self._run is not None
        return " (waits for a version)" if self._run.planner.blocked_on_policy else ""

    def _timeline(self) -> list[tuple[str, str]]:
        if not self._steps:
            return [("reward", "-")]
        last = self._steps[-1]
        return [
            ("reward", f"{last.reward_mean:.3f}  {sparks([step.reward_mean for step in self._steps])}"),
            ("staleness", f"{last.staleness_mean:.2f} on average, {last.staleness_max} at most"),
            (
                "last step",
                f"{last.collect_s:.2f} s to collect, {last.ship_s:.2f} s to ship, {last.tokens_per_s:,.0f} tokens/s",
            ),
        ]


def _mb(used: int, budget: int) -> str:
    return f"{used / 2**20:,.1f} of {budget / 2**20:,.0f} MB"


def sparks(values: list[float]) -> str:
    """A row of bars from the lowest value to the highest."""
    low, high = min(values), max(values)
    scale = (len(_SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_SPARKS[round((value - low) * scale)] for value in values)


def step_line(step: StepReport) -> str:
    lost = sum(step.dropped.values()) + sum(step.failed.values())
    return (
        f"step {step.step}  reward {step.reward_mean:.3f} ± {step.reward_std:.3f}  samples {step.samples}  "
        f"tokens {step.tokens:,} ({step.trained_tokens:,} trained)  "
        f"rollouts {step.trained} trained, {lost} not  staleness {step.staleness_mean:.2f}  "
        f"{step.collect_s:.2f} s + {step.ship_s:.2f} s to ship"
    )


def eval_line(report: EvalReport) -> str:
    failed = f", {report.failed} failed" if report.failed else ""
    return (
        f"{report.source} at version {report.version}: reward {report.reward_mean:.3f} over {report.rollouts} "
        f"rollouts{failed} in {span(report.took_s)}"
    )


def _counts(counts: dict[str, int]) -> str:
    total = sum(counts.values())
    return f"{total} ({', '.join(f'{reason} {count}' for reason, count in counts.items())})" if total else "0"
