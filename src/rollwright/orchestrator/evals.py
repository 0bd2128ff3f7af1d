"""Evaluations between training steps: when they are due, and what they gave. They have seats of their own, so no held
batch, full buffer or stale policy can make one wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from rollwright.wire import UsageError

from .groups import Fate, Landed, Ticket


class EvalPlan(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    tasks: int
    attempts: int = 1
    """Rollouts per task."""
    every: int = 10
    """Policy versions from one evaluation to the next; the first one is at version 0."""

    def __post_init__(self) -> None:
        if min(self.tasks, self.attempts, self.every) < 1:
            raise UsageError(f"evaluation {self.name!r} needs tasks, attempts and every of 1 or more")


class EvalReport(msgspec.Struct, frozen=True):
    """One evaluation of one policy version."""

    source: str
    version: int
    rollouts: int
    failed: int
    reward_mean: float
    """Over the rollouts that finished; 0 if none did."""
    took_s: float


class EvalState(msgspec.Struct, frozen=True):
    """What a checkpoint keeps: an evaluation that was under way begins again."""

    last_due: dict[str, int] = {}
    rounds: dict[str, int] = {}
    skipped: dict[str, int] = {}


class _Round:
    def __init__(self, plan: EvalPlan, version: int, number: int, now: float) -> None:
        self.plan = plan
        self.version = version
        self.number = number
        self.began = now
        self.waiting = deque(range(plan.tasks))
        self.running = 0
        self.rewards: list[float] = []
        self.failed = 0


class Evals:
    """At most one round of an evaluation runs at a time; versions that pass meanwhile are skipped, and counted."""

    def __init__(self, plans: Sequence[EvalPlan], seats: int, state: EvalState | None = None) -> None:
        state = state or EvalState()
        self._plans = {plan.name: plan for plan in plans}
        self._seats = seats
        self._last_due = dict(state.last_due)
        self._rounds = dict(state.rounds)
        self.skipped = dict(state.skipped)
        self._active: dict[str, _Round] = {}
        self._tickets: dict[int, _Round] = {}
        self._next = -1

    @property
    def running(self) -> int:
        """Rollouts."""
        return sum(round_.running for round_ in self._active.values())

    @property
    def idle(self) -> bool:
        return not self._active

    def owns(self, number: int) -> bool:
        return number < 0

    def advance(self, version: int, now: float) -> None:
        """A policy version is being served: begin what is due at it."""
        for plan in self._plans.values():
            due = version - version % plan.every
            if self._last_due.get(plan.name, -1) >= due:
                continue
            if plan.name in self._active:
                self.skipped[plan.name] = self.skipped.get(plan.name, 0) + 1
            else:
                number = self._rounds.get(plan.name, 0)
                self._rounds[plan.name] = number + 1
                self._active[plan.name] = _Round(plan, version, number, now)
            self._last_due[plan.name] = due

    def launch(self) -> list[Ticket]:
        """Their numbers are below 0: they are not groups that can be trained."""
        tickets = []
        for round_ in self._active.values():
            size = round_.plan.attempts
            while round_.waiting and (self.running + size <= self._seats or not self.running):
                task = round_.waiting.popleft()
                ticket = Ticket(self._next, round_.plan.name, task, round_.number * size, size, round_.version)
                self._next -= 1
                round_.running += size
                self._tickets[ticket.number] = round_
                tickets.append(ticket)
        return tickets

    def arrive(self, landed: Landed, now: float) -> EvalReport | None:
        """The report, when this was the last of its round."""
        round_ = self._tickets.pop(landed.ticket.number)
        round_.running -= landed.ticket.size
        round_.rewards += [arrival.reward for arrival in landed.arrivals if arrival.finished]
        round_.failed += sum(arrival.outcome.fate is Fate.FAILED for arrival in landed.arrivals)
        if round_.waiting or round_.running:
            return None
        del self._active[round_.plan.name]
        rewards = round_.rewards
        mean = sum(rewards) / len(rewards) if rewards else 0.0
        rollouts = round_.plan.tasks * round_.plan.attempts
        return EvalReport(round_.plan.name, round_.version, rollouts, round_.failed, mean, now - round_.began)

    def state(self) -> EvalState:
        due = {name: -1 if name in self._active else last for name, last in self._last_due.items()}
        return EvalState(due, dict(self._rounds), dict(self.skipped))
