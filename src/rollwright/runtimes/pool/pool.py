"""Boxes that outlive a rollout: leased, reset in the background, looked at, and only then handed to the next one.

    async with RuntimePool() as pool, pool.lease(config) as runtime:
        await runtime.run(["make", "test"])

Placement decides (`placement.py`); this carries its decisions out, in tasks of its own that no caller's cancellation
reaches. A box goes back on its shelf only after a reset and a look that finds it as it was right after its start. It
knows nothing of kinds, and nothing of rollouts.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from rollwright.runtimes.contract import Runtime, RuntimeConfig
from rollwright.runtimes.factory import make_runtime
from rollwright.runtimes.local.shield import shielded
from rollwright.telemetry.histogram import LogHistogram
from rollwright.wire import RuntimeFault

from .boxes import Box, Ticket, Work
from .care import Held, Maker, translated
from .config import PoolConfig
from .leased import LeasedRuntime
from .placement import Placement
from .stats import PoolStats, stats_of

T = TypeVar("T")

log = logging.getLogger("rollwright.runtimes")

_CLOSE_S = 120.0
_LAST_S = 2.0
_CONFIGS_KEPT = 64


class Lease:
    """The right to use one pooled box. `async with` claims and gives back; giving back awaits nothing."""

    def __init__(self, pool: RuntimePool, config: RuntimeConfig) -> None:
        self._pool = pool
        self._config = config
        self._ticket: Ticket | None = None
        self._leased: LeasedRuntime | None = None
        self.number = 0
        """Counts the pool's leases."""
        self.uses = 0
        """Leases of this box so far, this one included."""
        self.waited_s = 0.0
        """Time until a box was in hand."""

    async def __aenter__(self) -> Runtime:
        if self._ticket is not None:
            raise RuntimeFault("a lease is entered once")
        self._ticket, self._leased = await self._pool._claim(self, self._config)
        return self._leased

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        assert self._ticket is not None
        assert self._leased is not None
        self._pool._give_back(self._ticket, self._leased)


class RuntimePool:
    """Boxes by resolved config. Also an async context manager that closes it."""

    def __init__(
        self,
        config: PoolConfig | None = None,
        *,
        make: Maker = make_runtime,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.config = config or PoolConfig()
        self._maker = make
        self._clock = clock
        self._placement = Placement(self.config, rng)
        self._configs: dict[str, RuntimeConfig] = {}
        self._held: dict[Box, Held] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._wakes: dict[Ticket, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._arming = False
        self._closing: asyncio.Task[None] | None = None
        self._leases = 0
        self._claims_s = LogHistogram()
        self._resets_s = LogHistogram()

    def __repr__(self) -> str:
        seen = self.stats()
        busy = "".join(
            f", {number} {word}"
            for word, number in (("making", seen.making), ("resetting", seen.resetting), ("ending", seen.ending))
            if number
        )
        return (
            f"<RuntimePool {seen.idle} idle, {seen.leased} leased, {seen.waiting} waiting{busy}; "
            f"{seen.creates} made, {self._leases} leases, {seen.quarantines} quarantined>"
        )

    def stats(self) -> PoolStats:
        return stats_of(self._placement, self._claims_s, self._resets_s)

    def lease(self, config: RuntimeConfig) -> Lease:
        """A box of `config` for one user: `async with pool.lease(config) as runtime`."""
        return Lease(self, config)

    def expect(self, config: RuntimeConfig) -> None:
        """Make the boxes that are to be kept warm before the first one is asked for."""
        self._do(self._placement.expect(self._key(config), self._clock(), *_terms(config)))

    async def close(self) -> None:
        """End everything, leased boxes included. Idempotent, and bounded: what does not end in time is left to the
        sweeper."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="close pool")
        await shielded(self._closing, within_s=_CLOSE_S + 10.0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _claim(self, lease: Lease, config: RuntimeConfig) -> tuple[Ticket, LeasedRuntime]:
        began = self._clock()
        ticket, work = self._placement.ask(self._key(config), began, *_terms(config))
        self._do(work)
        try:
            runtime = await self._healthy(ticket, began)
        except BaseException:
            # Whatever ends the wait, a box that arrived meanwhile goes the way of every used box.
            self._do(self._placement.leave(ticket, self._clock()))
            raise
        assert ticket.box is not None
        self._leases += 1
        lease.number, lease.uses = self._leases, ticket.box.uses
        lease.waited_s = self._clock() - began
        self._claims_s.add(lease.waited_s)
        return ticket, LeasedRuntime(runtime)

    async def _healthy(self, ticket: Ticket, began: float) -> Runtime:
        """A box that answers. One that does not is replaced, at no cost to the place in the queue."""
        while True:
            box = await self._granted(ticket, began)
            held = self._held[box]
            if await held.answers() and box.ticket is ticket:
                return held.box
            log.warning("%s no longer answers and is replaced", held.name)
            self._do(self._placement.found_dead(ticket, self._clock()))

    async def _granted(self, ticket: Ticket, began: float) -> Box:
        if ticket.box is None and ticket.error is None:
            wake = self._wakes[ticket] = asyncio.get_running_loop().create_future()
            left_s = max(began + self.config.wait_s - self._clock(), 0.0)
            try:
                async with asyncio.timeout(left_s):
                    await wake
            except TimeoutError as error:
                raise RuntimeFault(f"no box was free within {self.config.wait_s:g} s: {self!r}") from error
            finally:
                del self._wakes[ticket]
        if ticket.error is not None:
            raise translated(ticket.error) from ticket.error
        assert ticket.box is not None
        return ticket.box

    def _give_back(self, ticket: Ticket, leased: LeasedRuntime) -> None:
        leased.revoke()
        now = self._clock()
        box = ticket.box
        if leased.torn and box is not None:
            log.warning("%s is quarantined: a write into it was cut off", leased.name)
            self._do(self._placement.quarantine(box, now))
        self._do(self._placement.leave(ticket, now))

    def _key(self, config: RuntimeConfig) -> str:
        """Configs that say the same share a shelf."""
        key = msgspec.json.encode(config, order="deterministic").decode()
        if len(self._configs) > 2 * len(self._placement.shelves) + _CONFIGS_KEPT:
            self._configs = {known: self._configs[known] for known in self._placement.shelves}
        self._configs[key] = config
        return key

    def _do(self, work: Work) -> None:
        """Carry out what placement decided."""
        for box in work.make:
            held = self._held[box] = Held(self._configs[box.shelf.key], self._maker)
            self._spawn(held.start(self.config.start_timeout_s), f"make box {box.number}", partial(self._was_made, box))
        for box in work.reset:
            reset = self._held[box].reset(self.config.reset_timeout_s)
            self._spawn(reset, f"reset box {box.number}", partial(self._was_reset, box))
        for box in work.end:
            self._spawn(self._held[box].stop(), f"end box {box.number}", partial(self._was_ended, box))
        for ticket in work.settled:
            wake = self._wakes.get(ticket)
            if wake is not None and not wake.done():
                wake.set_result(None)
        if not self._arming:
            # Once for all that happens in this turn of the loop.
            self._arming = True
            asyncio.get_running_loop().call_soon(self._arm)

    def _arm(self) -> None:
        """See to it that time passes for placement too."""
        self._arming = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._clock()
        moment = None if self._placement.closed else self._placement.wake_at(now)
        if moment is not None:
            self._timer = asyncio.get_running_loop().call_later(moment - now, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._do(self._placement.tick(self._clock()))

    def _spawn(self, work: Coroutine[Any, Any, T], name: str, report: Callable[[asyncio.Task[T]], None]) -> None:
        """Do `work` in a task of the pool's own. `report` hears of its end also where it was cancelled before it began,
        so that no box is forgotten."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(report)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _was_made(self, box: Box, task: asyncio.Task[Exception | None]) -> None:
        error = RuntimeFault("its start was cut off") if task.cancelled() else task.result()
        if error is None:
            self._do(self._placement.made(box, self._clock()))
        else:
            log.debug("box %d was not made: %s", box.number, error)
            self._do(self._placement.not_made(box, self._clock(), error))

    def _was_reset(self, box: Box, task: asyncio.Task[str]) -> None:
        reason = "its reset was cut off" if task.cancelled() else task.result()
        if not reason:
            self._resets_s.add(self._held[box].reset_s)
            self._do(self._placement.clean(box, self._clock()))
            return
        if not self._placement.closed:
            log.warning("%s is quarantined: %s", self._held[box].name, reason)
        self._do(self._placement.quarantine(box, self._clock()))

    def _was_ended(self, box: Box, task: asyncio.Task[str]) -> None:
        held = self._held.pop(box)
        reason = "its end was cut off" if task.cancelled() else task.result()
        if reason:
            # The journal still has the box, and a sweep frees it.
            self._placement.books["unfreed"] += 1
            log.warning("%s was not cleaned away: %s", held.name, reason)
        self._do(self._placement.freed(box, self._clock()))

    async def _close(self) -> None:
        self._do(self._placement.close(self._clock()))
        for task in self._unfinished():
            task.cancel()
        await self._drained(_CLOSE_S)
        for task in self._tasks:
            task.cancel()
        await self._drained(_LAST_S)
        seen = self.stats()
        log.info(
            "the pool made %d boxes for %d leases, of which %d found one ready; %d were quarantined, %d not freed",
            *(seen.creates, self._leases, seen.hits, seen.quarantines, seen.unfreed),
        )

    def _unfinished(self) -> list[asyncio.Task[Any]]:
        """Whatever makes or resets a box."""
        return [task for task in self._tasks if not task.get_name().startswith("end ")]

    async def _drained(self, within_s: float) -> None:
        deadline = self._clock() + within_s
        while self._tasks and (left_s := deadline - self._clock()) > 0:
            await asyncio.wait(set(self._tasks), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)


def _terms(config: RuntimeConfig) -> tuple[float | None, bool]:
    """What placement has to know of a kind: how long its boxes live, and whether each serves one lease."""
    return config.box_lifetime_s, config.reset_is_a_start
