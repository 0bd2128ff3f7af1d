"""Where a run lies: a new directory, the named one, or the latest of the same kind to go on with."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from rollwright.wire import UsageError

ROOT = Path("runs")
_LONGEST_NAME = 255
"""In bytes, on every file system in use."""


def run_place(output: str, taskset_name: str, model: str, *, resume: bool, now: float | None = None) -> Path:
    """The directory of the run, checked as far as one can without writing."""
    stem = f"{slug(_short(taskset_name))}--{slug(model)}--"
    if output:
        place = Path(output)
    elif resume:
        place = _latest(stem)
    else:
        place = _fresh(stem + time.strftime("%Y%m%d-%H%M%S", time.localtime(now)))
    check_writable(place)
    has_run = (place / "config.toml").is_file()
    if resume and not has_run:
        raise UsageError(f"{place} holds no run to resume; leave out --resume to begin one")
    if has_run and not resume:
        raise UsageError(f"{place} already holds a run; add --resume to go on with it, or name another directory")
    return place


def check_writable(place: Path) -> None:
    """Refuse a directory that cannot be made or written to, before any work is done for it."""
    existing = place.absolute()
    if any(len(os.fsencode(part)) > _LONGEST_NAME for part in existing.parts):
        raise UsageError(f"{str(place)[:60]}... is too long for the name of a directory; name another one with -o")
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise UsageError(f"{place} cannot be made: {existing} is not a directory; name another one with -o")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"{place} cannot be written: no permission in {existing}; name another one with -o")


def slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "unnamed"


def _short(taskset_name: str) -> str:
    file = re.fullmatch(r"(.+)\.py(:\w+)?", taskset_name)
    return Path(file[1]).name if file else taskset_name


def _latest(stem: str) -> Path:
    found = sorted(path for path in ROOT.glob("*") if path.name.startswith(stem) and (path / "config.toml").is_file())
    if not found:
        raise UsageError(f"there is no run {ROOT}/{stem}* to resume; leave out --resume, or name one with -o DIR")
    return found[-1]


def _fresh(name: str) -> Path:
    place, number = ROOT / name, 1
    while place.exists():
        number += 1
        place = ROOT / f"{name}-{number}"
    return place
