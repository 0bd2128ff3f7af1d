"""One call over all its attempts: how many, how long, and when to give up."""

from __future__ import annotations

import random
from collections.abc import Callable

from rollwright.wire import EngineUnavailable

from .config import RelayConfig
from .endpoint import Endpoint
from .pacing import pause_s
from .setbacks import Setback


class Journey:
    """The budget of one call. Time in queues is not counted: a run with many rollouts waits long and rightly so."""

    def __init__(self, endpoint: Endpoint, config: RelayConfig, max_retries: int) -> None:
        self.attempts = 0
        self.spent_s = 0.0
        self.queued_s = 0.0
        """Waiting for slots and for the rate, over all attempts."""
        self.heard = False
        """Part of the answer was told to somebody and cannot be taken back."""
        self._began_at: float | None = None
        self._endpoint = endpoint
        self._config = config
        self._max_retries = max_retries

    @property
    def left_s(self) -> float:
        return max(0.0, self._config.deadline_s - self.spent_s)

    @property
    def attempt_s(self) -> float:
        """The time that the next attempt may take."""
        return max(0.001, min(self._config.timeout_s, self.left_s))

    def begin(self, now: float) -> None:
        """An attempt has its slot and is about to be sent."""
        self.attempts += 1
        self._began_at = now

    def end(self, now: float) -> None:
        if self._began_at is not None:
            self.spent_s += now - self._began_at
            self._began_at = None

    def left_now_s(self, now: float) -> float:
        """What is left of the deadline in the middle of an attempt."""
        return max(0.0, self.left_s - (now - self._began_at if self._began_at is not None else 0.0))

    def pause_after(self, setback: Setback, dice: random.Random) -> float:
        """Seconds to wait before the next attempt; EngineUnavailable if there is none."""
        pause = pause_s(self.attempts - 1, setback.asked_s, dice)
        if self.attempts > self._max_retries or pause >= self.left_s:
            raise self.given_up(setback) from setback
        self.spent_s += pause
        return pause

    def given_up(self, setback: Setback) -> EngineUnavailable:
        tries = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        waited = f" and it asks to wait {setback.asked_s:.0f} s" if (setback.asked_s or 0) > self.left_s else ""
        step = f"; {setback.hint}" if setback.hint else ""
        return EngineUnavailable(f"{self._endpoint.name} {setback.reason} (gave up after {tries}{waited}){step}")


Obituary = Callable[[], str | None]
"""Says why the endpoint cannot come back, where somebody knows; None while it may live."""
