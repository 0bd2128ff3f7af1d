"""How a box is emptied: everything in it is killed, and at the same time new places are made to take those of the old.

The first process kills, and tells when all are gone; an errand makes the places, and puts them where they belong only
after that, so that nobody of before can have written into them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .blueprint import Blueprint
from .errands import Errand, Told
from .furnish import LEFT, running
from .loop import Loop
from .opening import Opening

_GONE_S = 10.0


class Clearing:
    """`then` hears once how it went. Half of it is never gone on with: the owner gives such a box up."""

    def __init__(
        self,
        loop: Loop,
        first: tuple[int, int],
        plans: Blueprint,
        opening: Opening,
        then: Callable[[Told], None],
    ) -> None:
        self._loop = loop
        self._first = first
        self._plans = plans
        self._opening = opening
        self._then: Callable[[Told], None] | None = then
        self._errand: Errand | None = None
        self._deadline = time.monotonic() + _GONE_S

    def begin(self) -> None:
        # The killing first: it takes its time, in which the errand is begun.
        self._opening.end_all(self._on_ended)
        if self._then is None:
            return
        try:
            self._errand = Errand(self._loop, self._first, self._plans.clearing, self._finish)
        except OSError as error:
            self._finish(Told(error=str(error)))

    def _on_ended(self, told: Told) -> None:
        if self._then is None:
            return
        if told.error:
            self._finish(told)
        elif told.word == LEFT and (left := running(f"/proc/{self._first[0]}/root/proc")):
            if time.monotonic() > self._deadline:
                self._finish(Told(error=f"{len(left)} processes are still there after {_GONE_S:g} s of killing"))
            else:
                self._opening.end_all(self._on_ended)
        elif self._errand is not None:
            # Nobody is there, or only the remains of programs that their owner has not asked for yet.
            self._errand.go_on()

    def _finish(self, told: Told) -> None:
        then, self._then = self._then, None
        if self._errand is not None:
            self._errand.drop()
        if then is not None:
            then(told)
