"""`rollwright orchestrate`: groups of rollouts in, one batch of samples per step out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollwright import telemetry
from rollwright.orchestrator.checkpoints import NAME
from rollwright.wire import UsageError

from .batching import OrchestrateCommand
from .jobs import dry_run, prepare
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
    place = Path(settings.output)
    check_writable(place)
    _check_run(place, resume=settings.resume)
    job = prepare(resolved, place, tokens=True)
    if settings.dry_run:
        result(dry_run(job, settings.steps * settings.batch_size))
        return 0
    from .orchestrating import OrchestrateRun

    return telemetry.run(OrchestrateRun(job, talk).run())


def _check_run(place: Path, *, resume: bool) -> None:
    begun = (place / NAME).is_file() or (place / "groups").is_dir()
    if resume and not begun:
        raise UsageError(f"{place} holds no run to resume; leave out --resume to begin one")
    if begun and not resume:
        raise UsageError(f"{place} already holds a run; add --resume to go on with it, or name another directory")
