"""What a run tells about itself: a line per step in metrics.jsonl, and the sum at the end."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np

from rollwright.telemetry import LoopLagMonitor

from .batches import Batch
from .contracts import Shipped
from .evals import EvalReport
from .groups import Accounts, Landed
from .planner import Planner
from .plans import Cut


class StepReport(msgspec.Struct, frozen=True):
    """One step. Counts of rollouts are of what happened since the step before."""

    step: int
    policy_version: int
    """The newest version that sampled any of the batch."""
    dispatched: int
    trained: int
    dropped: dict[str, int]
    failed: dict[str, int]
    caught: dict[str, int]
    """By each filter, removed or not."""
    samples: int
    tokens: int
    trained_tokens: int
    tokens_per_s: float
    reward_mean: float
    """Of the rollouts in the batch."""
    reward_std: float
    finished_reward_mean: float | None
    """Of all rollouts that finished since the step before, in the batch or not; None if none did."""
    advantage_std: float
    staleness_mean: float
    """Policy versions between the oldest token of a rollout and the version that trains it."""
    staleness_max: int
    in_flight: int
    """Rollouts, at the end of the step."""
    ready: int
    buffered_bytes: int
    """Of the samples that wait, in files."""
    landing_bytes: int
    """Of what has come back and is not in its file yet, in memory."""
    concurrency: int
    """Most rollouts in flight."""
    batch_bytes: int
    collect_s: float
    """From the step before to the cut."""
    ship_s: float
    lag_p50_s: float = 0.0
    """How late the event loop was during the step, weighted by time; 0 where nobody watched it."""
    lag_p90_s: float = 0.0
    lag_p99_s: float = 0.0
    lag_max_s: float = 0.0
    lag_blocked: float = 0.0
    """Share of moments at which the loop was away."""


class Report(msgspec.Struct, frozen=True):
    """A whole run, earlier lives included: `dispatched` is the sum of the three that follow it."""

    steps: int
    dispatched: int
    trained: int
    dropped: dict[str, int]
    failed: dict[str, int]
    samples: int
    """Of this life, as the two that follow."""
    tokens: int
    trained_tokens: int
    evals: tuple[EvalReport, ...]
    output: str


class Reporter:
    """Gathers between steps, on the loop; `step` writes, in a thread."""

    def __init__(self, directory: Path, monitor: LoopLagMonitor | None = None) -> None:
        self._directory = directory
        self._monitor = monitor
        self._before = Accounts()
        self._caught: Counter[str] = Counter()
        self._rewards: list[float] = []
        self._began = time.monotonic()
        self._evals: list[EvalReport] = []
        self._totals = np.zeros(3, np.int64)
        self._steps = 0

    def begin(self, planner: Planner) -> None:
        """What an earlier life has counted is not news."""
        self._before, self._caught = planner.accounts.copy(), Counter(planner.caught)
        self._steps = planner.step
        self._began = time.monotonic()

    def arrived(self, landed: Landed) -> None:
        self._rewards += [arrival.reward for arrival in landed.arrivals if arrival.finished]

    def evaluated(self, report: EvalReport) -> None:
        self._evals.append(report)

    def prepare(
        self, cut: Cut, planner: Planner, shipped: Shipped, *, limit: int, landing_bytes: int, ship_s: float
    ) -> StepReport:
        """The part that is of the size of rollouts; what is counted from here on belongs to the next step."""
        accounts, before = planner.accounts.copy(), self._before
        caught = Counter(planner.caught)
        collect_s = max(time.monotonic() - self._began - ship_s, 1e-9)
        report = StepReport(
            step=cut.step,
            policy_version=cut.newest_version,
            dispatched=accounts.dispatched - before.dispatched,
            trained=accounts.trained - before.trained,
            dropped=dict(Counter(accounts.dropped) - Counter(before.dropped)),
            failed=dict(Counter(accounts.failed) - Counter(before.failed)),
            caught=dict(caught - self._caught),
            samples=0,
            tokens=cut.tokens,
            trained_tokens=cut.trained_tokens,
            tokens_per_s=cut.tokens / (collect_s + ship_s),
            reward_mean=float(np.mean(cut.rewards)),
            reward_std=float(np.std(cut.rewards)),
            finished_reward_mean=float(np.mean(self._rewards)) if self._rewards else None,
            advantage_std=float(np.std([pick.advantage for pick in cut.picks])),
            staleness_mean=float(np.mean(cut.staleness)),
            staleness_max=max(cut.staleness),
            in_flight=planner.in_flight,
            ready=planner.ready,
            buffered_bytes=planner.buffered_bytes,
            landing_bytes=landing_bytes,
            concurrency=limit,
            batch_bytes=shipped.bytes,
            collect_s=collect_s,
            ship_s=ship_s,
            **self._lag(),
        )
        self._before, self._caught, self._rewards = accounts, caught, []
        self._began = time.monotonic()
        return report

    def _lag(self) -> dict[str, float]:
        if self._monitor is None:
            return {}
        seen = self._monitor.take_interval("step")
        return {
            "lag_p50_s": seen.p50_s,
            "lag_p90_s": seen.p90_s,
            "lag_p99_s": seen.p99_s,
            "lag_max_s": seen.max_s,
            "lag_blocked": seen.blocked_fraction,
        }

    def write(self, report: StepReport, batch: Batch) -> StepReport:
        """Blocking: appends to the metrics."""
        report = msgspec.structs.replace(report, samples=len(batch.samples))
        self._totals += (report.samples, report.tokens, report.trained_tokens)
        self._steps = report.step
        with open(self._directory / "metrics.jsonl", "ab") as file:
            file.write(_metrics_line(report))
        return report

    def sum(self, accounts: Accounts) -> Report:
        samples, tokens, trained_tokens = self._totals.tolist()
        return Report(
            steps=self._steps,
            dispatched=accounts.dispatched,
            trained=accounts.trained,
            dropped=dict(accounts.dropped),
            failed=dict(accounts.failed),
            samples=samples,
            tokens=tokens,
            trained_tokens=trained_tokens,
            evals=tuple(self._evals),
            output=str(self._directory),
        )


def _metrics_line(report: StepReport) -> bytes:
    """In the form of telemetry's JSONL sink, which may write to the same file; `step` tells the two apart."""
    metrics: dict[str, float] = {}
    for name, value in msgspec.structs.asdict(report).items():
        if isinstance(value, dict):
            metrics |= {f"{name}{{reason={reason}}}": count for reason, count in value.items()}
        elif value is None:
            continue
        elif name.startswith("lag_"):
            metrics["event_loop_lag/" + name.removeprefix("lag_").removesuffix("_s")] = value
        else:
            metrics[name] = value
    return msgspec.json.encode({"time": time.time(), "step": report.step, "metrics": metrics}) + b"\n"
