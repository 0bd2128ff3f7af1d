"""Cleanup that runs to its end while its caller is being cancelled. It decides nothing about what is cleaned."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from rollwright.wire import RuntimeFault

T = TypeVar("T")


async def shielded(work: Coroutine[Any, Any, T] | asyncio.Task[T], *, within_s: float) -> T:
    """Await `work` to its end, at most `within_s`; a cancellation that arrives meanwhile goes on afterwards.

    Work that takes longer is cancelled and raises RuntimeFault: cleanup is bounded, or it is a second hang.
    """
    task = work if isinstance(work, asyncio.Task) else asyncio.create_task(work)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    cancelled: asyncio.CancelledError | None = None
    while not task.done() and loop.time() < deadline:
        try:
            await asyncio.wait({task}, timeout=deadline - loop.time())
        except asyncio.CancelledError as error:
            cancelled = error
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)
        if cancelled is None:
            raise RuntimeFault(f"cleanup did not end within {within_s:g} s")
    if cancelled is not None:
        if task.done() and not task.cancelled():
            task.exception()  # Looked at, so that the loop does not report it as forgotten.
        raise cancelled
    return task.result()
