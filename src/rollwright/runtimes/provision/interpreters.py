"""Interpreters for PEP 723 scripts, made once per set of needs and kept in a cache directory.

Provisioning happens outside of boxes, with the host's environment, since index settings and certificates live there;
running a script is not done here.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from rollwright.runtimes.local.threads import in_thread
from rollwright.wire import RuntimeFault

from .building import DEADLINE_S, cache_dir, is_marked, locked, mark_ready, run_builder
from .flights import Flights
from .pep723 import Needs, needs_of

_flights: Flights[Path] = Flights()


async def provision(script: Path, *, timeout_s: float = DEADLINE_S) -> Path:
    """The interpreter that has what `script` declares, made if need be. Callers at the same time share the work."""
    needs, place, ready = await in_thread(_look_up, script)
    if ready:
        return _python(place)
    return await _flights.join(str(place), lambda: _provision(needs, place, timeout_s))


def find_interpreter(script: Path) -> Path | None:
    """The interpreter that has what `script` declares, if it is made already. Blocks on the disk."""
    _, place, ready = _look_up(script)
    return _python(place) if ready else None


def _look_up(script: Path) -> tuple[Needs, Path, bool]:
    needs = needs_of(script)
    place = cache_dir() / "scripts" / needs.key
    return needs, place, _is_ready(place)


async def _provision(needs: Needs, place: Path, timeout_s: float) -> Path:
    try:
        async with asyncio.timeout(timeout_s), locked(place):
            if not await in_thread(_is_ready, place):
                await _build(needs, place)
    except TimeoutError as error:
        raise RuntimeFault(f"no interpreter for a script within {timeout_s:g} s ({place})") from error
    except OSError as error:
        raise RuntimeFault(f"could not make an interpreter in {place}: {error}") from error
    return _python(place)


async def _build(needs: Needs, place: Path) -> None:
    await in_thread(shutil.rmtree, place, ignore_errors=True)
    await run_uv("venv", "--no-project", "--no-config", "--python", needs.python(), str(place))
    if needs.dependencies:
        install = ["pip", "install", "--python", str(_python(place)), "--compile-bytecode"]
        await run_uv(*install, "--", *needs.dependencies)
        await in_thread(_check_compiled, place)
    await in_thread(mark_ready, place)


async def run_uv(*words: str) -> None:
    """Run uv with the host's environment; RuntimeFault with its last lines where it fails."""
    from uv import find_uv_bin

    argv = [find_uv_bin(), "--no-progress", *words]
    await run_builder(f"uv {words[0]}", argv, "making the interpreter of a script")


def _is_ready(place: Path) -> bool:
    """Built to its end, and the interpreter it stands on has not been removed since."""
    return is_marked(place) and _python(place).exists()


def _python(place: Path) -> Path:
    return place / "bin" / "python"


def _check_compiled(place: Path) -> None:
    packages = next(place.glob("lib/python*/site-packages"))
    if any(packages.glob("[!_]*/**/*.py")) and not any(packages.rglob("*.pyc")):
        raise RuntimeFault(f"the packages in {packages} were not byte-compiled; each run would pay for it")
