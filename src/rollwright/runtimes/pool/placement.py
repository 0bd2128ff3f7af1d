"""Who gets which box, decided without awaiting.

`Placement` is the whole state of a pool: boxes on shelves (one shelf per resolved config), tickets of those who wait,
and the books. Every method takes the time, changes the state and returns the `Work` that follows from it; whoever calls
it does that work and reports back. A cancellation cannot tear such a step in half.

    making ──► idle ──► leased ──► resetting ──► idle          a box is idle only when it is known to be clean
       └────────┴──────────┴───────────┴──► ending ──► gone    ending boxes still count against the caps

Every box begins in `making`, under the one pace and the breaker of its shelf. Where a reset would be the start of
another box, there is no resetting: the used box ends, and its shelf is owed one, which is made ahead of demand.

Tickets are served oldest first. An older ticket that lacks room for a box of its own shelf takes the room of another
shelf's idle box before a younger ticket is given that box, so no shelf starves another.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterator
from itertools import count, islice, takewhile

from rollwright.wire import UsageError

from .boxes import Box, CreationPaused, Phase, PoolClosed, Shelf, Ticket, Work
from .config import PoolConfig
from .pacing import Breaker, Pace

_SLOW_RESET_S = 2.0
"""Whoever waits counts on boxes that are being reset, but a box that hangs in it is made up for by another one."""


class Placement:
    """The state of a pool. Invariants: caps hold, ending boxes included; a box has at most one holder; nobody waits
    while a box of that shelf is idle; only boxes that were reported clean are given out."""

    def __init__(self, config: PoolConfig, rng: random.Random | None = None) -> None:
        self.config = config
        self.shelves: dict[str, Shelf] = {}
        self.boxes: set[Box] = set()
        self.counts: Counter[Phase] = Counter()
        self.books: Counter[str] = Counter()
        self.closed = False
        self._rng = rng or random.Random()
        self._pace = Pace(config.create_per_s, self._rng)
        self._paced = False
        self._nothing_expires_before = float("inf")
        self._numbers = count(1)
        self._work = Work()

    @property
    def waiting(self) -> int:
        # Copied at once, since metrics are read in another thread.
        return sum(len(shelf.waiting) for shelf in list(self.shelves.values()))

    def expect(self, key: str, now: float, lifetime_s: float | None = None, used_once: bool = False) -> Work:
        """Somebody will ask for boxes of `key`: keep them warm as if it had asked. `lifetime_s` is after what time
        their provider ends them; those that are `used_once` are not reset but ended, and others made."""
        if not self.closed:
            self._shelf(key, lifetime_s, used_once).asked_at = now
        return self._settle(now)

    def ask(
        self, key: str, now: float, lifetime_s: float | None = None, used_once: bool = False
    ) -> tuple[Ticket, Work]:
        """Wish for a box. The ticket is settled at once if there is a clean one, or if there will be none."""
        shelf = self._shelf(key, lifetime_s, used_once)
        ticket = Ticket(next(self._numbers), shelf)
        if self.closed:
            ticket.error = PoolClosed("the pool is closed")
            return ticket, Work()
        shelf.asked_at = now
        shelf.waiting[ticket] = None
        work = self._settle(now)
        self.books["misses" if ticket.box is None else "hits"] += 1
        return ticket, work

    def leave(self, ticket: Ticket, now: float) -> Work:
        """The wish ends, whatever became of it: a box that was held goes to be reset. Idempotent."""
        ticket.shelf.waiting.pop(ticket, None)
        box, ticket.box = ticket.box, None
        if box is not None and box.ticket is ticket:
            box.ticket = None
            if box.phase is Phase.LEASED:
                self._take_back(box, now)
        return self._settle(now)

    def _take_back(self, box: Box, now: float) -> None:
        spent = bool(self.config.max_uses) and box.uses >= self.config.max_uses
        if box.shelf.used_once:
            box.shelf.owed.append(now)
            self._end(box)
        elif spent or self._old(box, now):
            self._evict(box)
        else:
            self._move(box, Phase.RESETTING)
            box.shelf.resetting[box] = now
            self._work.reset.append(box)

    def found_dead(self, ticket: Ticket, now: float) -> Work:
        """The box that `ticket` was given does not answer: it ends, and the ticket is the next one again."""
        box, ticket.box = ticket.box, None
        if box is None or box.ticket is not ticket:
            ticket.error = ticket.error or PoolClosed("the pool is closed")
            return Work()
        self.books["deaths"] += 1
        shelf = ticket.shelf
        self._end(box)
        shelf.waiting = dict.fromkeys(sorted((ticket, *shelf.waiting), key=lambda wish: wish.number))
        return self._settle(now)

    def made(self, box: Box, now: float) -> Work:
        """A new box started, and what it looks like is known."""
        self.books["creates"] += 1
        box.made_at = now
        box.shelf.breaker.success()
        self._put(box, now)
        return self._settle(now)

    def not_made(self, box: Box, now: float, error: Exception) -> Work:
        """A box could not be started. What there is of it ends; the oldest wish of its shelf pays for it in the end."""
        self._end(box)
        if self.closed:
            return self._settle(now)
        self.books["create_failures"] += 1
        shelf = box.shelf
        shelf.breaker.failure(now, str(error))
        oldest = next(iter(shelf.waiting), None)
        if oldest is not None:
            oldest.failures += 1
            # A wrong setting stays wrong, and a person has to hear of it.
            if isinstance(error, UsageError) or oldest.failures >= self.config.create_tries:
                self._refuse(oldest, error)
        return self._settle(now)

    def clean(self, box: Box, now: float) -> Work:
        """A reset is verified."""
        self.books["resets"] += 1
        if self._old(box, now):
            self._evict(box)
        else:
            self._put(box, now)
        return self._settle(now)

    def quarantine(self, box: Box, now: float) -> Work:
        """A box is not as it was after its start, or may not be: it is never used again."""
        if box.phase is Phase.ENDING:
            return self._settle(now)
        if not self.closed:
            self.books["quarantines"] += 1
        if box.ticket is not None:
            box.ticket.box = None
        self._end(box)
        return self._settle(now)

    def freed(self, box: Box, now: float) -> Work:
        """Nothing is left of a box that was ending."""
        self._move(box, None)
        self._forget_shelves(now)
        return self._settle(now)

    def tick(self, now: float) -> Work:
        """Time has passed."""
        self._forget_shelves(now)
        return self._settle(now)

    def close(self, now: float) -> Work:
        """Give out nothing more. Boxes in use end too; those being made or reset end when that is reported."""
        self.closed = True
        for shelf in self.shelves.values():
            for ticket in list(shelf.waiting):
                self._refuse(ticket, PoolClosed("the pool was closed while this waited for a box"))
        for box in self.boxes:
            if box.phase in (Phase.IDLE, Phase.LEASED):
                self._end(box)
        return self._settle(now)

    def wake_at(self, now: float) -> float | None:
        """When time alone changes something; None if never."""
        moments = [self._pace.ready_at(now)] if self._paced else []
        for shelf in self.shelves.values():
            if shelf.waiting or shelf.owed or self._kept_warm(shelf, now):
                moments.append(shelf.breaker.retry_at)
                moments.extend(islice((since + _SLOW_RESET_S for since in shelf.resetting.values()), shelf.slow, None))
            moments.extend(self._expiries(shelf))
        # What is due already was done by the last step, or is held up by something that reports by itself.
        return min((moment for moment in moments if moment > now), default=None)

    def _shelf(self, key: str, lifetime_s: float | None, used_once: bool) -> Shelf:
        shelf = self.shelves.get(key)
        if shelf is None:
            config = self.config
            breaker = Breaker(config.breaker_failures, config.breaker_s, self._rng)
            age_s = config.max_age_s if lifetime_s is None else min(config.max_age_s, lifetime_s / 2)
            shelf = self.shelves[key] = Shelf(key, breaker, age_s, used_once)
        return shelf

    def _settle(self, now: float) -> Work:
        """Bring the state to rest, and hand over the work that has come together."""
        if not self.closed:
            self._paced = False
            self._expire(now)
            self._serve(now)
            self._prefetch(now)
        work, self._work = self._work, Work()
        return work

    def _serve(self, now: float) -> None:
        coming = self.counts[Phase.ENDING]
        queue: list[tuple[int, int, Shelf]] = []

        def enqueue(shelf: Shelf, reserved: int) -> None:
            number = _turn(shelf, reserved)
            if number is not None:
                heapq.heappush(queue, (number, reserved, shelf))

        for shelf in self.shelves.values():
            if shelf.waiting:
                shelf.slow = _slow(shelf, now)
                enqueue(shelf, 0)
        while queue:
            number, reserved, shelf = heapq.heappop(queue)
            if _turn(shelf, reserved) != number:
                enqueue(shelf, reserved)  # An older ticket has taken the box that this one was to get.
            elif shelf.idle:
                self._grant(next(iter(shelf.waiting)), shelf.idle.pop())
                enqueue(shelf, reserved)
            elif self._makes(shelf, now):
                enqueue(shelf, reserved)
            elif self._lacks_room(shelf, now) and (coming > 0 or self._make_room(shelf)):
                # The room that becomes free is spoken for, so that one wish does not empty every other shelf.
                coming = max(coming - 1, 0)
                enqueue(shelf, reserved + 1)
            elif shelf.breaker.open(now) and not (shelf.under_way or shelf.counts[Phase.LEASED]):
                self._refuse_all(shelf)

    def _grant(self, ticket: Ticket, box: Box) -> None:
        del ticket.shelf.waiting[ticket]
        self._move(box, Phase.LEASED)
        box.uses += 1
        box.ticket, ticket.box = ticket, box
        self._work.settled.append(ticket)

    def _makes(self, shelf: Shelf, now: float) -> bool:
        """Begin a box, if caps, pace and breaker let it."""
        if len(self.boxes) >= self.config.max_boxes or not self._may_make(shelf, now):
            return False
        if self._pace.ready_at(now) > now:
            self._paced = True
            return False
        self._pace.take(now)
        del shelf.owed[:1]  # Whoever it is made for, there is one box more.
        box = Box(next(self._numbers), shelf)
        self._move(box, Phase.MAKING)
        self._work.make.append(box)
        return True

    def _may_make(self, shelf: Shelf, now: float) -> bool:
        making = shelf.counts[Phase.MAKING]
        room = self.counts[Phase.MAKING] < self.config.max_creating and shelf.size < self.config.shelf_room
        return room and shelf.breaker.permits(now, making)

    def _lacks_room(self, shelf: Shelf, now: float) -> bool:
        """Only the cap on all boxes keeps this shelf from making one."""
        return len(self.boxes) >= self.config.max_boxes and self._may_make(shelf, now)

    def _make_room(self, wanting: Shelf) -> bool:
        """End the box that was idle for the longest time; whether there was one."""
        first = [shelf.idle[0] for shelf in self.shelves.values() if shelf.idle and shelf is not wanting]
        if not first:
            return False
        box = min(first, key=lambda box: box.idle_since)
        box.shelf.idle.remove(box)
        self._evict(box)
        return True

    def _prefetch(self, now: float) -> None:
        for shelf in self.shelves.values():
            while shelf.owed and now >= shelf.owed[0] + self.config.idle_ttl_s:
                del shelf.owed[0]  # It would have been freed by now.
            while shelf.owed and self._makes(shelf, now):
                pass
            if self._kept_warm(shelf, now):
                shelf.slow = _slow(shelf, now)
                ready = len(shelf.idle) + shelf.under_way - len(shelf.waiting)
                while ready < self.config.min_warm and self._makes(shelf, now):
                    ready += 1

    def _kept_warm(self, shelf: Shelf, now: float) -> bool:
        return bool(self.config.min_warm) and now - shelf.asked_at < self.config.idle_ttl_s

    def _expire(self, now: float) -> None:
        if now < self._nothing_expires_before:
            return
        self._nothing_expires_before = float("inf")
        for shelf in self.shelves.values():
            for box, moment in list(zip(shelf.idle, self._expiries(shelf), strict=True)):
                if moment <= now:
                    shelf.idle.remove(box)
                    self._evict(box)
                else:
                    self._nothing_expires_before = min(self._nothing_expires_before, moment)

    def _expiries(self, shelf: Shelf) -> Iterator[float]:
        """When each idle box expires, in the order of the shelf."""
        spare = len(shelf.idle) - self.config.min_warm
        for place, box in enumerate(shelf.idle):
            wanted_at = box.idle_since if place < spare else max(box.idle_since, shelf.asked_at)
            yield min(box.made_at + shelf.max_age_s, wanted_at + self.config.idle_ttl_s)

    def _old(self, box: Box, now: float) -> bool:
        return now >= box.made_at + box.shelf.max_age_s

    def _put(self, box: Box, now: float) -> None:
        if self.closed:
            self._end(box)
            return
        box.idle_since = now
        self._move(box, Phase.IDLE)
        box.shelf.idle.append(box)
        # A box that is wanted again expires later than was thought, never earlier.
        expires = min(now + self.config.idle_ttl_s, box.made_at + box.shelf.max_age_s)
        self._nothing_expires_before = min(self._nothing_expires_before, expires)

    def _evict(self, box: Box) -> None:
        self.books["evictions"] += 1
        self._end(box)

    def _end(self, box: Box) -> None:
        self._move(box, Phase.ENDING)
        box.ticket = None
        self._work.end.append(box)

    def _move(self, box: Box, phase: Phase | None) -> None:
        """Keep the counts in step. A new box enters by its first phase, and a freed one leaves by None."""
        if box in self.boxes:
            self.counts[box.phase] -= 1
            box.shelf.counts[box.phase] -= 1
            box.shelf.resetting.pop(box, None)
        else:
            box.shelf.size += 1
        if phase is None:
            self.boxes.discard(box)
            box.shelf.size -= 1
            return
        self.boxes.add(box)
        box.phase = phase
        self.counts[phase] += 1
        box.shelf.counts[phase] += 1

    def _refuse(self, ticket: Ticket, error: Exception) -> None:
        del ticket.shelf.waiting[ticket]
        ticket.error = error
        self._work.settled.append(ticket)

    def _refuse_all(self, shelf: Shelf) -> None:
        breaker = shelf.breaker
        for ticket in list(shelf.waiting):
            reason = f"{breaker.failed} boxes in a row could not be made, the last one because: {breaker.reason}"
            self._refuse(ticket, CreationPaused(reason))

    def _forget_shelves(self, now: float) -> None:
        """A shelf with nothing on it goes, unless it remembers failures or is to be kept warm."""
        for shelf in list(self.shelves.values()):
            remembers = shelf.breaker.failed and now < shelf.breaker.retry_at + self.config.breaker_s
            if not (shelf.size or shelf.waiting or shelf.owed or remembers or self._kept_warm(shelf, now)):
                del self.shelves[shelf.key]


def _slow(shelf: Shelf, now: float) -> int:
    return sum(1 for _ in takewhile(lambda since: now >= since + _SLOW_RESET_S, shelf.resetting.values()))


def _turn(shelf: Shelf, reserved: int) -> int | None:
    """The number of the oldest ticket of a shelf that something can be done for: the first one if there is a box for
    it, else the first one that no box is under way for."""
    passed = 0 if shelf.idle else shelf.under_way + reserved
    ticket = next(islice(shelf.waiting, passed, None), None)
    return None if ticket is None else ticket.number
