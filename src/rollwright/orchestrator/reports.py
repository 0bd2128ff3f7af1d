"""What a run tells about itself: a line per step in metrics.jsonl, and the sum at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from .batches import Batch
from .dispatch import Step


class StepReport(msgspec.Struct, frozen=True):
    """One step. Rollouts that a replaced group spent are counted in the step that spent them."""

    step: int
    policy_version: int
    dispatched: int
    """Rollouts: each is trained, or dropped, or failed."""
    trained: int
    dropped: dict[str, int]
    failed: dict[str, int]
    samples: int
    tokens: int
    trained_tokens: int
    reward_mean: float
    """Of all rollouts that finished."""
    reward_std: float
    batch_bytes: int
    collect_s: float
    ship_s: float


class Report(msgspec.Struct, frozen=True):
    """A whole run: `dispatched` is the sum of the three that follow it."""

    steps: int
    dispatched: int
    trained: int
    dropped: dict[str, int]
    failed: dict[str, int]
    samples: int
    tokens: int
    trained_tokens: int
    output: str

    @classmethod
    def of(cls, steps: Sequence[StepReport], output: str) -> Report:
        dropped: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        for step in steps:
            dropped.update(step.dropped)
            failed.update(step.failed)
        return cls(
            steps=len(steps),
            dispatched=sum(step.dispatched for step in steps),
            trained=sum(step.trained for step in steps),
            dropped=dict(dropped),
            failed=dict(failed),
            samples=sum(step.samples for step in steps),
            tokens=sum(step.tokens for step in steps),
            trained_tokens=sum(step.trained_tokens for step in steps),
            output=output,
        )


def report_step(step: Step, batch: Batch, path: Path, *, collect_s: float, ship_s: float) -> StepReport:
    """Blocking: looks at the file and appends to the metrics beside it."""
    report = StepReport(
        step=step.number,
        policy_version=batch.policy_version,
        dispatched=step.accounts.dispatched,
        trained=step.accounts.trained,
        dropped=step.accounts.dropped,
        failed=step.accounts.failed,
        samples=len(batch.samples),
        tokens=batch.tokens,
        trained_tokens=sum(int(np.count_nonzero(sample.mask)) for sample in batch.samples),
        reward_mean=float(np.mean(step.rewards)),
        reward_std=float(np.std(step.rewards)),
        batch_bytes=path.stat().st_size,
        collect_s=collect_s,
        ship_s=ship_s,
    )
    with open(path.with_name("metrics.jsonl"), "ab") as file:
        file.write(_metrics_line(report))
    return report


def _metrics_line(report: StepReport) -> bytes:
    """In the form of telemetry's JSONL sink, which may write to the same file; `step` tells the two apart."""
    metrics: dict[str, float] = {}
    for name, value in msgspec.structs.asdict(report).items():
        if isinstance(value, dict):
            metrics |= {f"{name}{{reason={reason}}}": count for reason, count in value.items()}
        else:
            metrics[name] = value
    return msgspec.json.encode({"time": time.time(), "step": report.step, "metrics": metrics}) + b"\n"
