"""Where the time of a rollout goes. Each moment belongs to one phase, however many are open.

A program may make several model calls at once while it runs its tools. While any call is open the time is the model's;
otherwise it belongs to the phase that was opened last. So the phases of a rollout never add up to more than its wall
time. Nothing here awaits.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Phase(StrEnum):
    """What a rollout does with its time."""

    QUEUE = "queue_s"
    PROVISION = "provision_s"
    SETUP = "setup_s"
    MODEL = "model_s"
    TOOL = "tool_s"
    SCORE = "score_s"


class Phases:
    """The books of one rollout's time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = clock()
        self._open: list[Phase] = []
        self._spent: dict[Phase, float] = dict.fromkeys(Phase, 0.0)

    @property
    def current(self) -> Phase | None:
        if Phase.MODEL in self._open:
            return Phase.MODEL
        return self._open[-1] if self._open else None

    def enter(self, phase: Phase) -> None:
        self._settle()
        self._open.append(phase)

    def leave(self, phase: Phase) -> None:
        self._settle()
        self._open.remove(phase)

    def queued(self, seconds: float) -> None:
        """Move what was spent waiting from the phase that is running to the queue. Calls that waited side by side
        report the same seconds, so no more is moved than the phase has."""
        self._settle()
        phase = self.current
        if phase is not None:
            seconds = min(seconds, self._spent[phase])
            self._spent[phase] -= seconds
        self._spent[Phase.QUEUE] += seconds

    def spent(self) -> dict[Phase, float]:
        self._settle()
        return dict(self._spent)

    def _settle(self) -> None:
        now = self._clock()
        phase = self.current
        if phase is not None:
            self._spent[phase] += now - self._since
        self._since = now
