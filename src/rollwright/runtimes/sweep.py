"""Freeing what killed processes left: the journal tells what there was, each kind's own function frees it.

A sweep touches no box whose owner lives. Two sweeps at the same time do not meet: the second waits for the first, for a
while, and then leaves the work to it.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import cast

from .journal import Clues, Journal, Sweeper, Swept
from .local.threads import in_thread

SWEEPERS: Mapping[str, str] = {
    "subprocess": "rollwright.runtimes.subprocess:free",
    "sandbox": "rollwright.runtimes.sandbox.sweep:sweep",
    "docker": "rollwright.runtimes.docker.sweep:sweep",
    "prime": "rollwright.runtimes.prime.sweeping:sweep",
    "modal": "rollwright.runtimes.modal.sweep:sweep",
}
"""By kind, where the function is that frees its boxes. It is imported when such a box is found, and not before: a kind
may need an extra."""

_LOCK = ".sweep.lock"
_LOCK_POLL_S = 0.05
PATIENCE_S = 60.0


async def sweep_all(journal: Journal | None = None, *, patience_s: float = PATIENCE_S) -> Swept:
    """Free every box of this user on this host whose owner is gone, of whatever kind. Nothing to free costs one look
    at a directory."""
    journal = journal or Journal()
    if not await in_thread(journal.has_orphans):
        return Swept()
    async with _alone(journal, patience_s) as alone:
        if not alone:
            return Swept()
        return await journal.sweep({kind: _sweeper(where) for kind, where in SWEEPERS.items()})


def _sweeper(where: str) -> Sweeper:
    async def sweep(clues: Clues) -> None:
        module, _, name = where.partition(":")
        free = cast(Sweeper, getattr(await in_thread(importlib.import_module, module), name))
        await free(clues)

    return sweep


@asynccontextmanager
async def _alone(journal: Journal, patience_s: float) -> AsyncIterator[bool]:
    """Hold the lock of this journal's sweeps; False where another sweep held it all the while. The kernel frees the
    lock with its holder, and the file stays: removing it would let two hold it."""
    fd = os.open(journal.directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    try:
        while not (held := _try_lock(fd)) and loop.time() < deadline:  # noqa: ASYNC110 - no event comes from there.
            await asyncio.sleep(_LOCK_POLL_S)
        yield held
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
