"""Interpreters for PEP 723 scripts, made once per set of needs and kept in a cache directory.

Provisioning happens outside of boxes, with the host's environment, since index settings and certificates live there;
running a script is not done here.

Safe against races and kills: a lock file, which the kernel frees with its holder, is held while an environment is built
in place, and a marker is written last. An environment without its marker is built anew.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rollwright.runtimes.contract import Ending
from rollwright.runtimes.local import Command, Launch, Quarry, run_to_end, spawn_turn
from rollwright.runtimes.local.census import MARK
from rollwright.runtimes.local.threads import in_thread
from rollwright.wire import RuntimeFault

from .flights import Flights
from .pep723 import Needs, needs_of

DEADLINE_S = 600.0
_MARKER = ".rollwright-ready"
_LOCK_POLL_S = 0.05
_LAST_LINES = 12
_flights: Flights[Path] = Flights()


def cache_dir() -> Path:
    """$ROLLWRIGHT_CACHE_DIR, or `rollwright` in the user's cache directory."""
    if own := os.environ.get("ROLLWRIGHT_CACHE_DIR"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "rollwright").absolute()


async def provision(script: Path, *, timeout_s: float = DEADLINE_S) -> Path:
    """The interpreter that has what `script` declares, made if need be. Callers at the same time share the work."""
    needs, place, ready = await in_thread(_look_up, script)
    if ready:
        return _python(place)
    return await _flights.join(str(place), lambda: _provision(needs, place, timeout_s))


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
    await in_thread(Path(place, _MARKER).write_text, f"{time.time():.0f}\n")


async def run_uv(*words: str) -> None:
    """Run uv with the host's environment; RuntimeFault with its last lines where it fails."""
    from uv import find_uv_bin

    mark = secrets.token_hex(16)
    # PYTHON* switches of the host, such as the one that forbids writing .pyc files, are not for the new environment.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env |= {MARK: mark, "NO_COLOR": "1"}
    env.pop("VIRTUAL_ENV", None)
    async with spawn_turn():
        launch = Launch([find_uv_bin(), "--no-progress", *words], env, "/")
        command = Command(launch, Quarry(mark, "", time.monotonic()), feeds=False, output_limit=1 << 20)
    result = await run_to_end(command, b"", DEADLINE_S)
    if not result.ok:
        lines = result.stderr.decode("utf-8", "replace").strip().splitlines()[-_LAST_LINES:]
        why = "took too long" if result.ending is Ending.TIMED_OUT else f"ended with {result.exit_code}"
        raise RuntimeFault("\n".join([f"uv {words[0]} {why} while making the interpreter of a script:", *lines]))


@asynccontextmanager
async def locked(place: Path) -> AsyncIterator[None]:
    """Hold the lock of `place` against other processes. The file stays: removing it would let two hold it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(place.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while not _try_lock(fd):  # noqa: ASYNC110 - the holder is another process, which sends no event.
            await asyncio.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_ready(place: Path) -> bool:
    """Built to its end, and the interpreter it stands on has not been removed since."""
    return Path(place, _MARKER).exists() and _python(place).exists()


def _python(place: Path) -> Path:
    return place / "bin" / "python"


def _check_compiled(place: Path) -> None:
    packages = next(place.glob("lib/python*/site-packages"))
    if any(packages.glob("[!_]*/**/*.py")) and not any(packages.rglob("*.pyc")):
        raise RuntimeFault(f"the packages in {packages} were not byte-compiled; each run would pay for it")
