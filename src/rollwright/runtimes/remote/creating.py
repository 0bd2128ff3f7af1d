"""Creating boxes at a vendor who limits the rate and fails now and then. It knows no vendor: who calls says what an
error means."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from rollwright.wire import RuntimeFault

T = TypeVar("T")

log = logging.getLogger("rollwright.runtimes")


@dataclass(frozen=True, slots=True)
class Retry:
    """Another try may succeed, not before `after_s` where the vendor said so."""

    after_s: float = 0.0


class Pace:
    """At most `burst` at once, then one in `every_s`. Turns are given in the order of asking, each moved by a jitter so
    that many processes do not knock together."""

    def __init__(self, every_s: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._burst = burst
        self._clock = clock
        self._next = clock() - every_s * burst

    def __repr__(self) -> str:
        return f"<Pace one in {self._every_s:g} s, burst {self._burst}>"

    def turn(self) -> float:
        """Take the next turn; the seconds until it comes."""
        now = self._clock()
        self._next = max(self._next + self._every_s, now - self._every_s * (self._burst - 1))
        return max(0.0, self._next - now)

    def delay(self, seconds: float) -> None:
        """The vendor asked for rest: nobody's turn comes before it is over."""
        self._next = max(self._next, self._clock() + seconds)

    async def wait(self) -> None:
        if (wait_s := self.turn()) > 0:
            await asyncio.sleep(wait_s + random.uniform(0, self._every_s / 4))


async def create_patiently(
    create: Callable[[], Awaitable[T]],
    meaning: Callable[[Exception], Retry | None],
    *,
    pace: Pace,
    within_s: float,
    tries: int = 8,
    base_s: float = 0.5,
) -> T:
    """What `create` gives, after as many tries as fit into `within_s`. `create` must be safe to repeat.

    `meaning` tells of an error whether another try may succeed; where not, the error goes on. Waits double, are spread
    by full jitter, and are never shorter than what the vendor asked for, which also slows down everyone on this pace.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    for number in range(1, tries + 1):
        try:
            async with asyncio.timeout_at(deadline) as clock:
                await pace.wait()
                return await create()
        except Exception as error:
            if clock.expired():
                raise RuntimeFault(f"no box was created within {within_s:g} s ({number} tries)") from error
            retry = meaning(error)
            if retry is None:
                raise
            wait_s = max(retry.after_s, random.uniform(0, base_s * 2 ** (number - 1)))
            if retry.after_s:
                pace.delay(retry.after_s)
            if number == tries or loop.time() + wait_s > deadline:
                raise RuntimeFault(f"no box was created after {number} tries: {error}") from error
            log.debug("creating a box is tried again in %.1f s, after try %d of %d: %r", wait_s, number, tries, error)
            await asyncio.sleep(wait_s)
    raise RuntimeFault(f"no box was created: {tries} tries are none")
