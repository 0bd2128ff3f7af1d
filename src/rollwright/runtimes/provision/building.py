"""Things that are built once per host and kept: who builds, with which program, and how a half-built one is told.

Building happens outside of boxes, with the host's environment, since index settings and certificates live there.

Safe against races and kills: a lock file, which the kernel frees with its holder, is held while a thing is built in
place, and a marker is written last. A thing without its marker is built anew.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rollwright.runtimes.contract import Ending
from rollwright.runtimes.local import Command, Launch, Quarry, run_to_end, spawn_turn
from rollwright.runtimes.local.census import MARK
from rollwright.wire import RuntimeFault

DEADLINE_S = 600.0
_MARKER = ".rollwright-ready"
_LOCK_POLL_S = 0.05
_LAST_LINES = 12


def cache_dir() -> Path:
    """$ROLLWRIGHT_CACHE_DIR, or `rollwright` in the user's cache directory."""
    if own := os.environ.get("ROLLWRIGHT_CACHE_DIR"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "rollwright").absolute()


async def run_builder(name: str, argv: Sequence[str], aim: str) -> None:
    """Run a program of the host with the host's environment; RuntimeFault with its last lines where it fails."""
    mark = secrets.token_hex(16)
    # PYTHON* switches of the host, such as the one that forbids writing .pyc files, are not for what is built.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env |= {MARK: mark, "NO_COLOR": "1"}
    env.pop("VIRTUAL_ENV", None)
    async with spawn_turn():
        launch = Launch(list(argv), env, "/")
        command = Command(launch, Quarry(mark, "", time.monotonic()), feeds=False, output_limit=1 << 20)
    result = await run_to_end(command, b"", DEADLINE_S)
    if not result.ok:
        lines = result.stderr.decode("utf-8", "replace").strip().splitlines()[-_LAST_LINES:]
        why = "took too long" if result.ending is Ending.TIMED_OUT else f"ended with {result.exit_code}"
        raise RuntimeFault("\n".join([f"{name} {why} while {aim}:", *lines]))


@asynccontextmanager
async def locked(place: Path) -> AsyncIterator[None]:
    """Hold the lock of `place` against other processes. The file stays: removing it would let two hold it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(place.with_name(f"{place.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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


def mark_ready(place: Path) -> None:
    """Say that `place` is built to its end."""
    Path(place, _MARKER).write_text(f"{time.time():.0f}\n")


def is_marked(place: Path) -> bool:
    return Path(place, _MARKER).exists()
