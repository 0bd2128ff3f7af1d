"""A few threads of our own for blocking file and /proc work.

The loop's default executor is shared with name lookups and whatever else an application puts there; the end of a
program must not queue behind it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 8


@functools.cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="rollwright-box")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` off the loop. It cannot be interrupted: a cancelled caller leaves it running to its end."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_executor(), functools.partial(work, *args, **kwargs))


class Chores:
    """Blocking work in one box. A chore whose caller was cancelled goes on in its thread, so whoever empties or removes
    the box, or closes what a chore works with, first waits until all of them are done."""

    def __init__(self) -> None:
        self._going: set[Future[Any]] = set()

    def __repr__(self) -> str:
        return f"<Chores {len(self._going)} going on>"

    async def do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `in_thread`; one that no thread has begun yet is dropped with its caller."""
        chore = _executor().submit(work, *args, **kwargs)
        self._going.add(chore)
        chore.add_done_callback(self._going.discard)
        return await asyncio.wrap_future(chore)

    async def done(self) -> None:
        """Wait for all that were begun. How long that may take is the caller's business."""
        if self._going:
            await asyncio.gather(*map(asyncio.wrap_future, list(self._going)), return_exceptions=True)


def submit(work: Callable[[], object]) -> None:
    """Have `work` done by one of these threads some time. RuntimeError where this process is ending."""
    _executor().submit(work)
