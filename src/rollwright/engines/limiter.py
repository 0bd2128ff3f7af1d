"""How many calls an endpoint gets at once: additive increase, multiplicative decrease, first come first served.

`Gate` is the whole decision, as plain functions over a clock that the caller passes in: who may enter, who waits, how
the limit moves. `Limiter` only parks coroutines on it. It does not retry, does not pace calls per minute (`pacing.py`
does), and knows nothing of HTTP: its user says "overloaded" or "went well" about a call that it admitted.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

Clock = Callable[[], float]

# An overloaded endpoint keeps 70% of the calls it had: deep enough to clear a queue in a few windows, shallow enough
# that one stray 503 does not halve a healthy run.
KEEP = 0.7
WINDOW_S = 1.0
ROUNDS_TO_RECOVER = 32


class Ticket:
    """One call's place: first in the queue, then in flight, then gone."""

    __slots__ = ("admitted_at", "wake")

    def __init__(self) -> None:
        self.admitted_at: float | None = None
        self.wake: asyncio.Future[None] | None = None


class Gate:
    """The state of one endpoint. Invariants: a ticket is in exactly one of waiting and in flight, or gone; nobody waits
    while a slot is free; the limit stays within [1, ceiling]."""

    def __init__(self, ceiling: int, *, window_s: float = WINDOW_S) -> None:
        if ceiling < 1:
            raise ValueError("a gate needs room for at least one call")
        self.ceiling = ceiling
        self.limit = float(ceiling)
        self.window_s = window_s
        self.waiting: OrderedDict[Ticket, None] = OrderedDict()
        self.in_flight: set[Ticket] = set()
        self.backed_off_at = float("-inf")
        self._peak = 0

    def enter(self, now: float) -> Ticket:
        """Queue up. The ticket is admitted at once if nobody waits and a slot is free."""
        ticket = Ticket()
        self.waiting[ticket] = None
        self._admit(now)
        return ticket

    def leave(self, ticket: Ticket, now: float) -> list[Ticket]:
        """Give the place back, in the queue or in flight. Returns the tickets that this lets in."""
        self.waiting.pop(ticket, None)
        self.in_flight.discard(ticket)
        return self._admit(now)

    def overloaded(self, ticket: Ticket, now: float) -> None:
        """The endpoint pushed this call back. Lowers the limit at most once per window, and never for a call that was
        sent before the last lowering: its answer is news about the past."""
        sent_at = ticket.admitted_at
        if sent_at is None or sent_at < self.backed_off_at or now - self.backed_off_at < self.window_s:
            return
        # A limit far above what was ever in flight was never tested, so the cut starts from what was.
        self.limit = max(1.0, min(self.limit, self._peak) * KEEP)
        self.backed_off_at = now
        self._peak = len(self.in_flight)

    def went_well(self, ticket: Ticket) -> None:
        """A full round of good calls raises the limit by one step. The step is a share of the ceiling, so that a run
        of 256 recovers in as many rounds as a run of 32."""
        if ticket.admitted_at is not None and ticket.admitted_at >= self.backed_off_at:
            step = max(1.0, self.ceiling / ROUNDS_TO_RECOVER)
            self.limit = min(float(self.ceiling), self.limit + step / self.limit)

    def _admit(self, now: float) -> list[Ticket]:
        admitted: list[Ticket] = []
        while self.waiting and len(self.in_flight) < int(self.limit):
            ticket, _ = self.waiting.popitem(last=False)
            ticket.admitted_at = now
            self.in_flight.add(ticket)
            admitted.append(ticket)
        self._peak = max(self._peak, len(self.in_flight))
        return admitted

    def __repr__(self) -> str:
        return f"<Gate {len(self.in_flight)} in flight, {len(self.waiting)} waiting, limit {int(self.limit)}>"


class Limiter:
    """Parks coroutines on a gate. `acquire` and `release` frame one attempt; between them the user reports once."""

    def __init__(self, ceiling: int, *, clock: Clock = time.monotonic, window_s: float = WINDOW_S) -> None:
        self.gate = Gate(ceiling, window_s=window_s)
        self._clock = clock

    async def acquire(self, timeout_s: float) -> Ticket:
        """Wait for a slot; TimeoutError when it takes too long. A cancelled wait gives its place back, also where the
        cancellation and the admission meet in the same turn of the loop."""
        ticket = self.gate.enter(self._clock())
        if ticket.admitted_at is not None:
            return ticket
        ticket.wake = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await ticket.wake
        except BaseException:
            self.release(ticket)
            raise
        return ticket

    def release(self, ticket: Ticket) -> None:
        """Idempotent."""
        for admitted in self.gate.leave(ticket, self._clock()):
            if admitted.wake is not None and not admitted.wake.done():
                admitted.wake.set_result(None)

    def overloaded(self, ticket: Ticket) -> None:
        self.gate.overloaded(ticket, self._clock())

    def went_well(self, ticket: Ticket) -> None:
        self.gate.went_well(ticket)
