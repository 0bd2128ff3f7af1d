"""What a worker serves. The function that an order names returns a `Host` to enter; the worker knows nothing else."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from rollwright.wire import RollwrightError, Trace, UsageError

from .protocol import Ending, Job

Each = Callable[[int, Trace], None]


class HostLost(RollwrightError):
    """Nothing will ever run here again: the worker ends, and what it held runs elsewhere."""


class Host(Protocol):
    async def probe(self) -> None:
        """Prove that work would be done, by doing a little of it. Raises if not."""
        ...

    async def run(self, job: Job, positions: Sequence[int], each: Each) -> Ending:
        """Run the attempts at these positions of the job; `each` is called with a position and its trace as soon as it
        is over. A rollout that fails is a trace. Cancelling this cancels all of it. HostLost if it failed because
        nothing can run here any more, such as after the death of an engine that is the worker's own."""
        ...

    def cancel(self, job: Job, position: int) -> bool:
        """End one rollout of a job; its trace says so. False if it is not running, or not yet."""
        ...

    def tell_policy(self, version: int) -> None:
        """The engines serve this policy version from now on."""
        ...

    def vitals(self) -> dict[str, float]:
        """Numbers worth showing. Called from another thread, so it only reads."""
        ...


HostMaker = Callable[[str], AbstractAsyncContextManager[Host]]


def find_host(path: str) -> HostMaker:
    """The function that `module:function` names; it is given the options as JSON."""
    module, colon, name = path.partition(":")
    try:
        maker: HostMaker = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"a worker cannot serve {path!r}: {error}") from error
    if not colon:
        raise UsageError(f"a worker serves module:function, not {path!r}")
    return maker
