"""Freeing what killed processes left, in the background of whoever serves. It is in nobody's way and fails nobody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollwright.dialects import sweep_spills
from rollwright.runtimes.sweep import sweep_all

_GRACE_S = 5.0

log = logging.getLogger("rollwright.rollouts")


@asynccontextmanager
async def sweeping() -> AsyncIterator[None]:
    """Sweep once while the block runs. A sweep that is not done soon after it is left to the next start."""
    task = asyncio.create_task(_sweep(), name="sweep")
    try:
        yield
    finally:
        try:
            await asyncio.wait({task}, timeout=_GRACE_S)
        finally:
            task.cancel()
        await asyncio.wait({task}, timeout=_GRACE_S)


async def _sweep() -> None:
    try:
        # Whoever sweeps already does the same work.
        swept = await sweep_all(patience_s=0.0)
        spills = await asyncio.to_thread(sweep_spills)
    except Exception as error:  # Old boxes must not keep new rollouts from running.
        log.warning("what earlier processes left behind was not freed: %s", error)
        return
    if swept.freed:
        log.info("freed %d boxes that earlier processes left behind", len(swept.freed))
    if spills:
        log.info("removed %d directories of images that earlier processes left behind", spills)
    for name, reason in swept.failed.items():
        log.warning("%s, which an earlier process left behind, was not freed: %s", name, reason)
