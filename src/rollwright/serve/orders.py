"""What `rollwright ctl` may ask of a running server, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from rollwright.wire import RollwrightError
from rollwright.wire.hints import hint

from .books import Books
from .ledger import Letter
from .settings import BrokerSettings
from .slots import Life, Slots

MAX_WORKERS = 4096


class OrderError(RollwrightError):
    """The order makes no sense."""


class Orders:
    def __init__(
        self,
        settings: BrokerSettings,
        books: Books,
        slots: Slots,
        relieve: Callable[[Life], None],
        vitals: Callable[[], dict[str, float]],
        send_all: Callable[[list[Letter]], None],
        tell_policy: Callable[[int], None],
        scaled: Callable[[int], None],
    ) -> None:
        self._settings = settings
        self._books = books
        self._slots = slots
        self._relieve = relieve
        self._vitals = vitals
        self._send_all = send_all
        self._tell_policy = tell_policy
        self._scaled = scaled

    def obey(self, verb: str, value: str, now: float) -> dict[str, Any]:
        verbs: dict[str, Callable[[str, float], None]] = {
            "status": lambda value, now: None,
            "scale": self._scale,
            "drain": self._drain,
            "cancel": self._cancel,
            "policy": self._policy,
        }
        if verb == "served":
            return self._served()
        if verb not in verbs:
            raise OrderError(f"the server has no order {verb!r}; {hint(verb, verbs)}")
        verbs[verb](value, now)
        return self.status(now)

    def status(self, now: float) -> dict[str, Any]:
        workers = [self._worker(life, now) for life in self._slots.lives]
        return {
            "failing": self._books.failing,
            "wanted": self._slots.count,
            **self._books.status(),
            "broker": self._vitals(),
            "workers": workers,
            "happenings": msgspec.to_builtins(list(self._slots.happenings)),
        }

    def _served(self) -> dict[str, Any]:
        """What a worker that joins has to know."""
        settings = self._settings
        return {
            "host": settings.host,
            "options": settings.options,
            "capacity": settings.capacity,
            "stall_limit_s": settings.slots.stall_limit_s,
        }

    def _worker(self, life: Life, now: float) -> dict[str, Any]:
        return {
            "name": life.name,
            "slot": life.slot,
            "life": life.number,
            "phase": life.phase.value,
            "age_s": round(now - life.began, 3),
            "beat_age_s": round(now - life.last_beat, 3),
            "loop_age_s": round(life.loop_age_s, 3),
            "stack": life.stack,
            "rollouts": self._books.load_of(life.peer),
            "vitals": life.vitals,
        }

    def _scale(self, value: str, now: float) -> None:
        if not value.isdecimal() or not 0 <= int(value) <= MAX_WORKERS:
            raise OrderError(f"scale takes a number of workers up to {MAX_WORKERS}, not {value!r}")
        self._scaled(int(value))
        for life in self._slots.scale(int(value), now):
            self._relieve(life)

    def _drain(self, value: str, now: float) -> None:
        """Replace the workers of one slot, or of all: each finishes what it has, and its successor takes over."""
        if value and not value.isdecimal():
            raise OrderError(f"drain takes the number of a worker, or nothing for all of them, not {value!r}")
        wanted = None if not value else int(value)
        for life in self._slots.leave(wanted):
            self._relieve(life)

    def _policy(self, value: str, now: float) -> None:
        """The policy version that the engines serve from now on, which every worker marks its calls with."""
        if not value.isdecimal() or len(value) > 15:
            raise OrderError(f"policy takes the number of a version, not {value!r}")
        self._tell_policy(int(value))

    def _cancel(self, value: str, now: float) -> None:
        """End the requests of one task, or all of them; their clients are told."""
        self._send_all(self._books.cancel_labelled(value))
