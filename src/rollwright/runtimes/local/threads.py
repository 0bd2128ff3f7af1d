"""A few threads of our own for blocking file and /proc work.

The loop's default executor is shared with name lookups and whatever else an application puts there; the end of a
program must not queue behind it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

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


def submit(work: Callable[[], object]) -> None:
    """Have `work` done by one of these threads some time. RuntimeError where this process is ending."""
    _executor().submit(work)
