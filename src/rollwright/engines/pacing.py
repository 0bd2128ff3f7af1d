"""When to send: rate limits per minute, pauses between retries, and what a server asked for in its headers.

Plain functions and one small state machine; clocks and randomness are parameters. Nothing here sleeps.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
BURST_S = 1.0


class Bucket:
    """A rate limit as a bucket that may go into debt.

    Taking is always granted and says how long to wait before using it, so whoever asks first goes first and an amount
    larger than the bucket still passes. What was taken and not used is given back.
    """

    def __init__(self, per_minute: float, now: float) -> None:
        if per_minute <= 0:
            raise ValueError("a rate limit is more than zero per minute")
        self.per_s = per_minute / 60
        # At least one unit fits, or a limit below one per second would make even the first call wait.
        self.capacity = max(1.0, self.per_s * BURST_S)
        self.level = self.capacity
        self._filled_at = now

    def take(self, amount: float, now: float) -> float:
        """Seconds to wait before the amount may be used."""
        self._fill(now)
        self.level -= amount
        return max(0.0, -self.level / self.per_s)

    def give_back(self, amount: float, now: float) -> None:
        """Return what was not used; a negative amount takes more without waiting."""
        self._fill(now)
        self.level = min(self.capacity, self.level + amount)

    def _fill(self, now: float) -> None:
        passed_s = max(0.0, now - self._filled_at)
        self.level = min(self.capacity, self.level + passed_s * self.per_s)
        self._filled_at = max(now, self._filled_at)


def pause_s(attempt: int, asked_s: float | None, dice: random.Random) -> float:
    """How long to wait after the failed attempt number `attempt` (from 0).

    Full jitter: anywhere between nothing and a bound that doubles. What the server asked for is a floor, and the
    jitter comes on top, or every client that was told "2 seconds" would return in the same instant.
    """
    bound_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(attempt, 16))
    jitter_s = dice.uniform(0.0, bound_s)
    return jitter_s if asked_s is None else asked_s + min(jitter_s, 1.0)


def retry_after_s(headers: Mapping[str, str], unix_now: float) -> float | None:
    """What `retry-after-ms` or `Retry-After` (seconds or an HTTP date) asks for; None where they say nothing usable."""
    if milliseconds := headers.get("retry-after-ms"):
        asked = _number(milliseconds)
        if asked is not None:
            return asked / 1000
    value = headers.get("Retry-After")
    if not value:
        return None
    asked = _number(value)
    return asked if asked is not None else _until(value, unix_now)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _until(date: str, unix_now: float) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, moment.timestamp() - unix_now)
