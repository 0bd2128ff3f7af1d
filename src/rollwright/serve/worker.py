"""A worker: one process, one loop, many rollouts. `python -m rollwright.serve.worker PARENT`, with its order as a line
of JSON on stdin.

It announces itself when its host is open, answers a probe by doing a little real work, and then runs what it is given
until it is told to leave; one that nobody started here (`joining.py`) also ends when the broker falls silent. A job
that breaks is answered with what broke; it ends neither the worker nor its neighbours.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec
import zmq

from rollwright.engines.child import belong_to
from rollwright.telemetry import LoopLagMonitor
from rollwright.telemetry.loop import run, started
from rollwright.wire import RollwrightError, Trace, UsageError, WireError
from rollwright.wire.codec import Buffer, decode, encode

from .carrier import Carrier
from .hosting import Host, HostLost, find_host
from .launching import GUEST, WorkerOrder
from .outbox import Outbox
from .protocol import (
    VERSION,
    Arrived,
    Done,
    Drop,
    Ending,
    Failed,
    Job,
    Leave,
    Leaving,
    Part,
    Policy,
    Probe,
    Probed,
    Refusal,
    Refused,
    Run,
    ToWorker,
    Trouble,
    Withdraw,
)
from .pulse import Pulse, lag_vitals, own_vitals
from .shelf import place
from .wiring import Address, connected

log = logging.getLogger("rollwright.serve.worker")

MAX_ERROR_CHARS = 4000
TICK_S = 0.5
WITHDRAW_AGAIN_S, WITHDRAW_PAUSE_S = 0.05, 1.0
"""A rollout that is not to be is looked for again after the first, and then less and less often up to the second."""
QUIET_TICKS = 6
"""The broker speaks as often as we tick; so many ticks without a word mean that it is gone or has given us up."""


class Worker:
    def __init__(self, order: WorkerOrder, host: Host, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._order = order
        self._host = host
        self._address = Address.decode(order.address)
        self._context = context
        self._running: dict[int, asyncio.Task[None]] = {}
        self._jobs: dict[int, Job] = {}
        self._counts = {"done": 0, "failed": 0, "dropped": 0}
        self._left = asyncio.Event()
        self._leaving = False
        self._begun = 0
        """The highest ticket."""
        self._probes: set[asyncio.Task[None]] = set()
        self._quiet_ticks = 0
        self._arrived = self._wants_to_leave = False
        self.proven = False
        """Whether it was asked to prove itself: the broker had let it in."""
        self.refused = ""
        """Why it was turned away."""

    def leave(self) -> None:
        """Finish what is here and go. The broker is told first: what it sent before it knew is run as well."""
        self._wants_to_leave = True
        if self._arrived:
            self._carrier.send(Leaving())

    async def serve(self) -> bool:
        """Until told to leave, and everything is finished; False if the broker fell silent instead."""
        order = self._order
        async with LoopLagMonitor(stall_over_s=None) as self._lag:
            self._carrier = Carrier(
                connected(self._context, self._address.back, self._address), ToWorker, self._on_message, _puzzled
            )
            self._outbox = Outbox(self._carrier)
            who = order.slot, order.life
            pulse = Pulse(
                self._context, self._address, *who, self._vitals, lambda: self._begun, limit_s=order.stall_limit_s
            )
            pulse.start()
            try:
                self._carrier.send(Arrived(VERSION, self._address.token, *who, order.capacity, place()))
                self._arrived = True
                if self._wants_to_leave:
                    self.leave()
                # Without a deadline on purpose: a worker waits for work as long as its broker lives, and the broker's
                # death is its own.
                await (self._until_silent() if order.slot == GUEST else self._left.wait())
                return self._left.is_set()
            finally:
                for task in (*self._running.values(), *self._probes):
                    task.cancel()
                await asyncio.gather(*self._running.values(), *self._probes, return_exceptions=True)
                await self._outbox.close()
                pulse.close()
                self._carrier.close(linger_ms=2000)

    async def _until_silent(self) -> None:
        """Silence is counted in turns of this loop, so that a loop that stood still does not blame the broker."""
        while self._quiet_ticks < QUIET_TICKS and not self._left.is_set():
            self._quiet_ticks += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._left.wait()

    def _vitals(self) -> dict[str, float]:
        lag = lag_vitals(self._lag.snapshot())
        ours = {**own_vitals(), **self._counts, "requests": len(self._running), **self._outbox.vitals()}
        return {**ours, **lag, **self._host.vitals()}

    def _on_message(self, said: Any, frames: Sequence[Buffer]) -> None:
        self._quiet_ticks = 0
        if isinstance(said, Run):
            self._begin(said, frames)
        elif isinstance(said, Drop):
            if said.ticket in self._running:
                self._counts["dropped"] += 1
                self._running[said.ticket].cancel()
        elif isinstance(said, Probe):
            self.proven = True
            task = asyncio.create_task(self._probe(said.nonce), name="probe")
            self._probes.add(task)
            task.add_done_callback(self._probes.discard)
        elif isinstance(said, Withdraw):
            self._withdraw(said, WITHDRAW_AGAIN_S)
        elif isinstance(said, Policy):
            self._host.tell_policy(said.version)
        elif isinstance(said, Leave):
            self._leaving = True
            self._leave_if_idle()
        elif isinstance(said, Refused):
            self._refused(said)

    def _refused(self, said: Refused) -> None:
        if said.kind is Refusal.TURNED_AWAY:
            self.refused = said.reason
            self._left.set()
        else:
            log.warning("the broker could not make use of what we said: %s", said.reason)

    async def _probe(self, nonce: int) -> None:
        try:
            await self._host.probe()
        except Exception as error:  # The border to the host: what is wrong is the worker's last word.
            _give_up(f"the probe failed: {type(error).__name__}: {error}")
        self._carrier.send(Probed(nonce))

    def _begin(self, said: Run, frames: Sequence[Buffer]) -> None:
        self._begun = said.ticket
        task = asyncio.create_task(self._work(said, frames), name=f"ticket {said.ticket}")
        self._running[said.ticket] = task
        task.add_done_callback(lambda _: self._over(said.ticket))

    def _withdraw(self, said: Withdraw, again_s: float) -> None:
        """A rollout that has not begun yet is ended when it has, however long that takes."""
        job = self._jobs.get(said.request)
        if job is not None and self._host.cancel(job, said.position):
            return
        if said.request in self._running:
            later_s = min(2 * again_s, WITHDRAW_PAUSE_S)
            asyncio.get_running_loop().call_later(again_s, self._withdraw, said, later_s)

    def _over(self, ticket: int) -> None:
        self._running.pop(ticket, None)
        self._jobs.pop(ticket, None)
        self._leave_if_idle()

    def _leave_if_idle(self) -> None:
        if self._leaving and not self._running:
            self._left.set()

    async def _work(self, said: Run, frames: Sequence[Buffer]) -> None:
        ticket = said.ticket
        try:
            self._jobs[ticket] = job = decode(frames, Job)
            positions = [position for position in range(len(job.attempts)) if position not in said.skip]
            parts = _Parts(self._outbox, said, len(positions))
            async with asyncio.timeout(said.timeout_s):
                ending = await self._host.run(job, positions, parts.each)
        except TimeoutError as error:
            self._fail(ticket, Trouble.TIMED_OUT, error)
        except HostLost as error:
            _give_up(str(error))
        except RollwrightError as error:
            self._fail(ticket, Trouble.REFUSED if isinstance(error, WireError) else Trouble.BROKE, error)
        except Exception as error:  # The border to the host.
            log.exception("a request broke")
            self._fail(ticket, Trouble.BROKE, error)
        else:
            self._counts["done"] += 1
            parts.end(ending)

    def _fail(self, ticket: int, trouble: Trouble, error: Exception) -> None:
        self._counts["failed"] += 1
        self._outbox.send(Failed(ticket, trouble, f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]))


def _give_up(last_words: str) -> NoReturn:
    """End at once, as a crash would: the broker hears the words, and gives what is under way to others."""
    print(last_words, file=sys.stderr, flush=True)
    os._exit(1)


def _puzzled(error: WireError) -> None:
    log.warning("the broker said what is no message of ours: %s", error)


class _Parts:
    """Sends traces as they come, and keeps the last one back for the moment until it is known whether scoring them
    together changed anything: a rollout alone is then one message and not two."""

    def __init__(self, outbox: Outbox, said: Run, count: int) -> None:
        self._outbox = outbox
        self._ticket, self._near = said.ticket, said.near
        self._missing = count
        self._last: tuple[int, Trace] | None = None

    def each(self, position: int, trace: Trace) -> None:
        self._missing -= 1
        if self._missing:
            self._outbox.send(Part(self._ticket, position), encode(trace), near=self._near)
        else:
            self._last = position, trace

    def end(self, ending: Ending) -> None:
        alone = not ending.amendments
        if self._last is not None:
            position, trace = self._last
            self._outbox.send(Part(self._ticket, position, alone), encode(trace), near=self._near)
        if self._last is None or not alone:
            self._outbox.send(Done(self._ticket), encode(ending), near=self._near)


async def _main(order: WorkerOrder) -> None:
    context: Any = zmq.Context()
    try:
        async with find_host(order.host)(order.options) as host:
            started()
            await Worker(order, host, context).serve()
    finally:
        context.destroy(linger=2000)


def main() -> None:
    belong_to(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    with contextlib.suppress(UsageError):  # What is wrong with it is said when it is ordered.
        find_host(sys.argv[2] if len(sys.argv) > 2 else "")
    line = sys.stdin.buffer.readline()
    if not line:
        return  # Whoever started us no longer needs us.
    order = msgspec.json.decode(line, type=WorkerOrder)
    # Nobody reads on from where the order came from.
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    # Whoever started us puts our name before every line.
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    try:
        run(_main(order))
    except RollwrightError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
