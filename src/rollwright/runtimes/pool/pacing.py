"""How fast boxes may be made: a rate for the whole pool, and a breaker for each shelf. Plain state."""

from __future__ import annotations

import random

_BURST_S = 1.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_JITTER = 0.25


def jittered(seconds: float, rng: random.Random) -> float:
    """`seconds`, a quarter more or less, so that many pools that began together do not go on together."""
    return seconds * rng.uniform(1.0 - _JITTER, 1.0 + _JITTER)


class Pace:
    """Spreads creations over time; a second's worth may be saved up for a burst."""

    def __init__(self, per_s: float, rng: random.Random) -> None:
        self._gap_s = 1.0 / per_s if per_s else 0.0
        self._rng = rng
        self._paid_until = float("-inf")

    def ready_at(self, now: float) -> float:
        """When the next box may be begun; not later than `now` if it may be at once."""
        return self._paid_until - _BURST_S if self._gap_s else now

    def take(self, now: float) -> None:
        """A box is begun."""
        if self._gap_s:
            self._paid_until = max(self._paid_until, now) + jittered(self._gap_s, self._rng)


class Breaker:
    """Whether a shelf may make boxes, as its failures in a row tell.

    A failure is followed by a pause that doubles. After `failures` in a row the breaker is open: nothing is made for
    `open_s`, then one box is tried, and its fate closes the breaker or opens it again.
    """

    def __init__(self, failures: int, open_s: float, rng: random.Random) -> None:
        self._bound = failures
        self._open_s = open_s
        self._rng = rng
        self.failed = 0
        """Failures in a row."""
        self.retry_at = float("-inf")
        self.reason = ""
        """What the last failure said."""

    def failure(self, now: float, reason: str) -> None:
        self.failed += 1
        self.reason = reason
        pause_s = min(_FIRST_PAUSE_S * 2 ** (min(self.failed, 16) - 1), _LONGEST_PAUSE_S)
        self.retry_at = now + jittered(self._open_s if self.tripped else pause_s, self._rng)

    def success(self) -> None:
        self.failed = 0
        self.retry_at = float("-inf")
        self.reason = ""

    @property
    def tripped(self) -> bool:
        return self.failed >= self._bound

    def open(self, now: float) -> bool:
        """Nothing is made, so whoever needs a new box fails at once."""
        return self.tripped and now < self.retry_at

    def permits(self, now: float, making: int) -> bool:
        """Whether one more box may be begun beside those that are being made."""
        return now >= self.retry_at and not (self.tripped and making)
