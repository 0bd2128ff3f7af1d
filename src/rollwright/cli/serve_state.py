"""What a server says of itself: that it serves, with whom, or what it still waits for. Time is a parameter."""

from __future__ import annotations

from rollwright.serve.server import Sight

REMIND_S, MAX_REMIND_S = 10.0, 300.0
"""How long the first wait for a worker may be before it is told again; each later one is twice as long."""


class State:
    """What has been said, so that only news are."""

    def __init__(self) -> None:
        self._said = ""
        self._waiting_since = 0.0
        self._remind_s = REMIND_S
        self._next = 0.0

    def look(self, seen: Sight, now: float) -> str:
        """What is to be said now, or nothing."""
        if seen.ready:
            return self._news("some" if seen.ready < seen.wanted else "all", serving(seen), now)
        words = self._news("none", waiting(seen), now)
        if not words and now >= self._next:
            self._remind_s = min(self._remind_s * 2, MAX_REMIND_S)
            self._next = now + self._remind_s
            words = f"{waiting(seen)} No worker has answered for {now - self._waiting_since:.0f} s."
        return words

    def _news(self, kind: str, words: str, now: float) -> str:
        if kind == self._said:
            return ""
        self._said, self._waiting_since = kind, now
        self._remind_s, self._next = REMIND_S, now + REMIND_S
        return words


def serving(seen: Sight) -> str:
    if seen.ready < seen.wanted:
        return f"Serving with {seen.ready} of {seen.wanted} workers; the others are not ready."
    return f"Serving with {counted(seen.ready)}."


def waiting(seen: Sight) -> str:
    if seen.workers:
        return f"Waiting: {', '.join(f'{worker.name} is {worker.phase.value}' for worker in seen.workers[:8])}."
    if seen.wanted:
        return f"Waiting for {counted(seen.wanted)} to start."
    return "Waiting for a worker to join."


def counted(workers: int) -> str:
    return f"{workers} worker{'' if workers == 1 else 's'}"
