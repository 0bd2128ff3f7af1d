"""`rollwright orchestrate`: groups of rollouts in, one batch file of samples per step out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from rollwright import telemetry
from rollwright.engines.factory import open_engine
from rollwright.harnesses import make_harness
from rollwright.orchestrator import Report, StepReport, orchestrate
from rollwright.rollouts import Environment
from rollwright.telemetry import LoopLagMonitor, MemoryTrimmer
from rollwright.wire import UsageError

from .batching import OrchestrateCommand
from .interrupts import Interrupts
from .jobs import Job, dry_run, prepare, prove
from .places import check_writable
from .resolve import resolve
from .talk import Talk, result


def main(argv: Sequence[str], talk: Talk) -> int:
    resolved = resolve(OrchestrateCommand, argv)
    if resolved is None:
        return 0
    settings = resolved.settings
    if not settings.output:
        raise UsageError("orchestrate needs a directory for its batches; add -o DIR")
    check_writable(Path(settings.output))
    job = prepare(resolved, Path(settings.output), tokens=True)
    if settings.dry_run:
        result(dry_run(job, settings.steps * settings.batch_size))
        return 0
    return telemetry.run(_run(job, talk))


async def _run(job: Job[OrchestrateCommand], talk: Talk) -> int:
    with Interrupts(talk.say) as interrupts:
        try:
            report = await _orchestrated(job, talk)
        except asyncio.CancelledError:
            if not interrupts.presses:
                raise
            talk.say(f"Interrupted. The steps that were written stay in {job.place}.")
            return 1
    _tell(job, report, talk)
    return 0


async def _orchestrated(job: Job[OrchestrateCommand], talk: Talk) -> Report:
    settings = job.settings
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(MemoryTrimmer())
        await stack.enter_async_context(LoopLagMonitor())
        engine = await stack.enter_async_context(open_engine(job.engine, settings.model))
        await prove(engine, job.engine)
        environment = Environment(
            job.taskset,
            harness=make_harness(settings.harness),
            runtime=settings.runtime,
            limits=settings.limits,
            pool=settings.pool,
        )
        serving = await stack.enter_async_context(
            environment.serving(engine, settings.model, sampling=settings.sampling, return_tokens=True)
        )
        return await orchestrate(
            settings.orchestration(), serving, job.tasks, on_step=lambda step: talk.say(step_line(step))
        )


def step_line(step: StepReport) -> str:
    lost = sum(step.dropped.values()) + sum(step.failed.values())
    return (
        f"step {step.step}  reward {step.reward_mean:.3f} ± {step.reward_std:.3f}  samples {step.samples}  "
        f"tokens {step.tokens:,} ({step.trained_tokens:,} trained)  "
        f"rollouts {step.dispatched} ({step.trained} trained, {lost} not)  "
        f"{step.collect_s:.2f} s + {step.ship_s:.2f} s to write"
    )


def _tell(job: Job[OrchestrateCommand], report: Report, talk: Talk) -> None:
    lost = [*report.dropped.items(), *report.failed.items()]
    reasons = f" ({', '.join(f'{count} {reason}' for reason, count in lost)})" if lost else ""
    batches = "1 batch" if report.steps == 1 else f"{report.steps} batches"
    words = (
        f"{batches} in {report.output}: {report.samples} samples, {report.tokens:,} tokens, "
        f"{report.trained} of {report.dispatched} rollouts trained{reasons}"
    )
    if not job.settings.json:
        result(words)
        return
    talk.say(words)
    table = {**msgspec.to_builtins(report), "taskset": job.taskset_name, "model": job.settings.model}
    result(msgspec.json.encode(table).decode())
