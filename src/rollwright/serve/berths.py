"""Which worker has the most room, found without looking at all of them: there may be thousands, and every rollout asks.

A heap of what was believed of each seat. A seat that got more room is put in again; one that got less is corrected when
it comes to the top, so that placing costs nothing for those that are not looked at. An entry counts while it says what
its seat's `noted_room` says.
"""

from __future__ import annotations

import heapq
from collections.abc import Sized
from typing import Generic, Protocol, TypeVar


class Berth(Protocol):
    """A seat as far as room is concerned."""

    capacity: int
    open: bool
    noted_room: int

    @property
    def held(self) -> Sized: ...
    @property
    def room(self) -> int: ...


S = TypeVar("S", bound=Berth)


class Berths(Generic[S]):
    def __init__(self) -> None:
        self._seats: dict[int, S] = {}
        self._heap: list[tuple[int, int, S]] = []
        self._serial = 0
        self._smallest = 0

    def __repr__(self) -> str:
        return f"<Berths {len(self._seats)} seats, {len(self._heap)} entries>"

    def add(self, seat: S) -> None:
        self._seats[id(seat)] = seat
        self._smallest = min(one.capacity for one in self._seats.values())
        self.roomier(seat)

    def remove(self, seat: S) -> None:
        """It must be closed already: its entries are dropped as they are met."""
        del self._seats[id(seat)]
        self._smallest = min((one.capacity for one in self._seats.values()), default=0)

    def roomier(self, seat: S) -> None:
        """It has more room than before, or may be given work again."""
        if seat.open and seat.room > seat.noted_room:
            self._enter(seat)
            if len(self._heap) > 4 * len(self._seats) + 64:
                self._heap = [entry for entry in self._heap if entry[2].open and -entry[0] == entry[2].noted_room]
                heapq.heapify(self._heap)

    def roomiest(self, weight: int) -> S | None:
        """The open seat with the most room, if `weight` fits there. Something that is heavier than a worker's whole
        capacity is given to one that holds nothing, rather than to none."""
        best = self._top()
        if best is not None and best.room >= weight:
            return best
        if best is None or weight <= self._smallest:
            return None
        return next((seat for seat in self._seats.values() if seat.open and not seat.held), None)

    def _top(self) -> S | None:
        while self._heap:
            entry, _, seat = self._heap[0]
            if seat.open and -entry == seat.noted_room == seat.room:
                return seat
            heapq.heappop(self._heap)
            if -entry == seat.noted_room:
                seat.noted_room = -1
                self.roomier(seat)
        return None

    def _enter(self, seat: S) -> None:
        self._serial += 1
        seat.noted_room = seat.room
        heapq.heappush(self._heap, (-seat.room, self._serial, seat))
