"""When a vendor ends a box by itself: after its lifetime, or after lying idle. Plain bookkeeping."""

from __future__ import annotations

import time
from collections.abc import Callable

from rollwright.wire import RuntimeLost


class Lifetime:
    """Zero seconds mean that there is no such end. The vendor's clock began no later than ours, so ours is the later
    one; `margin_s` is how long the vendor may take to do as it said."""

    def __init__(
        self, lifetime_s: float, idle_s: float, *, margin_s: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._idle_s = idle_s
        self._margin_s = margin_s
        self._ends = clock() + lifetime_s if lifetime_s else float("inf")
        self._used = clock()

    def __repr__(self) -> str:
        return f"<Lifetime {self.left_s():.0f} s left>"

    def touch(self) -> None:
        """Something was done in the box, which begins its idle time anew."""
        self._used = self._clock()

    def left_s(self) -> float:
        """Seconds until the vendor ends it if nothing more is done."""
        idle_ends = self._used + self._idle_s if self._idle_s else float("inf")
        return min(self._ends, idle_ends) - self._clock()

    def bound(self, seconds: float) -> float:
        """`seconds`, or less where the box cannot live so long: whoever waits for it waits no longer."""
        return max(0.0, min(seconds, self._ends + self._margin_s - self._clock()))

    def check(self, name: str) -> None:
        """RuntimeLost for a box that the vendor has ended by now."""
        if self.left_s() <= 0:
            raise RuntimeLost(f"box {name} is past its lifetime or idle time")
