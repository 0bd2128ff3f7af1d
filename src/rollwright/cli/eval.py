"""`rollwright eval`: every chosen task, so many times, against one model. What runs it is imported when it runs."""

from __future__ import annotations

from collections.abc import Sequence

from .jobs import dry_run, prepare
from .places import run_place
from .resolve import resolve
from .settings import EvalSettings
from .talk import Talk, result


def main(argv: Sequence[str], talk: Talk) -> int:
    resolved = resolve(EvalSettings, argv)
    if resolved is None:
        return 0
    settings = resolved.settings
    place = run_place(settings.output, resolved.taskset_name, settings.model, resume=settings.resume)
    job = prepare(resolved, place, shuffle=settings.shuffle)
    if settings.dry_run:
        result(dry_run(job, len(job.tasks) * settings.rollouts))
        return 0
    from rollwright import telemetry

    from .evaluating import EvalRun

    return telemetry.run(EvalRun(job, talk).run())
