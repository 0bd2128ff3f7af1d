"""CPU slots: how many scripts score at once on this host.

A burst of finishing rollouts waits here, first come first served, instead of oversubscribing the cores. The wait is
told apart from the work: a deadline begins when the slot is taken (law 6). It knows nothing of scripts or boxes.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from rollwright.wire import RuntimeFault

PATIENCE_S = 3600.0


def usable_cores() -> int:
    """Cores that this process may run on, which is what a container or taskset left of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class CpuSlots:
    """A fair counter for one event loop. `repr` is a status line."""

    def __init__(self, count: int | None = None, *, patience_s: float = PATIENCE_S) -> None:
        self.count = usable_cores() if count is None else count
        if self.count < 1:
            raise RuntimeFault(f"{self.count} CPU slots can run nothing; give at least 1")
        self._patience_s = patience_s
        self._free = self.count
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __repr__(self) -> str:
        return f"<CpuSlots {self.count - self._free} of {self.count} taken, {len(self._waiting)} waiting>"

    def take(self) -> AbstractAsyncContextManager[float]:
        """Hold a slot; the value is the seconds spent waiting for it."""
        return _Hold(self.acquire, self.release)

    @property
    def contended(self) -> bool:
        """Whether anybody waits for a slot."""
        return bool(self._waiting)

    def acquire_now(self) -> bool:
        """Hold a slot if one is free, until `release`."""
        if self._free:
            self._free -= 1
            return True
        return False

    async def acquire(self) -> float:
        """Hold a slot until `release`; the seconds spent waiting for it."""
        if self.acquire_now():
            return 0.0
        loop = asyncio.get_running_loop()
        began = loop.time()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        patience = loop.call_later(self._patience_s, _lose_patience, turn)
        try:
            await turn
        except TimeoutError as error:
            self._give_up(turn)
            raise RuntimeFault(f"no CPU slot within {self._patience_s:g} s: {self!r}") from error
        except BaseException:
            self._give_up(turn)
            raise
        finally:
            patience.cancel()
        return loop.time() - began

    def _give_up(self, turn: asyncio.Future[None]) -> None:
        """Leave the queue; a slot that was handed over in the same moment goes to the next."""
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self.release()
        elif turn in self._waiting:
            self._waiting.remove(turn)

    def release(self) -> None:
        """Hand the slot to the first who still waits: it is never free while somebody queues."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class _Hold(AbstractAsyncContextManager[float]):
    """A slot while it is held. Written out, since a generator would cost each call more than the slot itself."""

    __slots__ = ("_acquire", "_release")

    def __init__(self, acquire: Callable[[], Awaitable[float]], release: Callable[[], None]) -> None:
        self._acquire = acquire
        self._release = release

    async def __aenter__(self) -> float:
        return await self._acquire()

    async def __aexit__(self, *exc: object) -> None:
        self._release()


def _lose_patience(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(TimeoutError())


UNCOUNTED = CpuSlots(1 << 40)
"""For programs that mostly wait for others: they neither queue nor hold a slot that a script could use."""

_defaults: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, CpuSlots] = weakref.WeakKeyDictionary()


def default_slots() -> CpuSlots:
    """The slots that everything on this loop shares unless it is given others."""
    loop = asyncio.get_running_loop()
    if loop not in _defaults:
        _defaults[loop] = CpuSlots()
    return _defaults[loop]
