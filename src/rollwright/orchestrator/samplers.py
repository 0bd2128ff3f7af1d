"""Which task of a source comes next. A sampler is a function of its seed and of what it has seen, so that a run goes on
from a checkpoint as if it had never stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from rollwright.wire import UsageError
from rollwright.wire.arrays import Floats, Ints
from rollwright.wire.hints import hint


class SamplerState(msgspec.Struct, frozen=True):
    """What a checkpoint keeps of a sampler."""

    drawn: int = 0
    draws: dict[int, int] = {}
    """Per task, where they differ from what `drawn` says by itself."""
    estimates: dict[int, float] = {}


class Sampler(Protocol):
    def draw(self) -> tuple[int, int]:
        """The next task, and how often it was drawn before."""
        ...

    def learn(self, task: int, rewards: Sequence[float]) -> None:
        """What the finished rollouts of a group of this task got."""
        ...

    def state(self) -> SamplerState: ...


class Shuffled:
    """Every task once per epoch, in an order of its own for each epoch."""

    def __init__(self, tasks: int, seed: int, state: SamplerState) -> None:
        self._tasks = tasks
        self._seed = seed
        self._drawn = state.drawn
        self._epoch = -1
        self._order: list[int] = []

    def draw(self) -> tuple[int, int]:
        epoch, position = divmod(self._drawn, self._tasks)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self._seed, epoch]).permutation(self._tasks).tolist()
        self._drawn += 1
        return self._order[position], epoch

    def learn(self, task: int, rewards: Sequence[float]) -> None:
        pass

    def state(self) -> SamplerState:
        return SamplerState(self._drawn)


class Curriculum:
    """Tasks that the policy solves sometimes come more often than those it solves always or never.

    A task is drawn with a weight of spread + floor, where the spread is 4p(1 - p) for the running mean p of its
    rewards, clipped to 0..1. A task that was never drawn has the full spread.
    """

    FLOOR = 0.05
    """What keeps a task that is always or never solved in the game."""
    MEMORY = 0.5
    """How much of the last estimate stays when a new group comes in."""

    def __init__(self, tasks: int, seed: int, state: SamplerState) -> None:
        self._seed = seed
        self._drawn = state.drawn
        self._draws: Ints = np.zeros(tasks, np.int64)
        self._estimates: Floats = np.full(tasks, np.nan)
        for task, count in state.draws.items():
            self._draws[task] = count
        for task, estimate in state.estimates.items():
            self._estimates[task] = estimate

    def draw(self) -> tuple[int, int]:
        solved = np.nan_to_num(self._estimates, nan=0.5)
        weights = 4 * solved * (1 - solved) + self.FLOOR
        totals = np.cumsum(weights)
        point = np.random.default_rng([self._seed, self._drawn]).random() * totals[-1]
        task = int(np.searchsorted(totals, point, side="right"))
        before = int(self._draws[task])
        self._drawn += 1
        self._draws[task] += 1
        return task, before

    def learn(self, task: int, rewards: Sequence[float]) -> None:
        if not rewards:
            return
        seen = float(np.clip(np.mean(rewards), 0.0, 1.0))
        old = self._estimates[task]
        self._estimates[task] = seen if np.isnan(old) else self.MEMORY * old + (1 - self.MEMORY) * seen

    def state(self) -> SamplerState:
        draws = {int(task): int(self._draws[task]) for task in np.flatnonzero(self._draws)}
        known = np.flatnonzero(~np.isnan(self._estimates))
        return SamplerState(self._drawn, draws, {int(task): float(self._estimates[task]) for task in known})


SAMPLERS: dict[str, type[Shuffled] | type[Curriculum]] = {"shuffled": Shuffled, "curriculum": Curriculum}


def make_sampler(kind: str, tasks: int, seed: int, state: SamplerState | None = None) -> Sampler:
    if kind not in SAMPLERS:
        raise UsageError(f"there is no sampler {kind!r}; {hint(kind, SAMPLERS)}")
    return SAMPLERS[kind](tasks, seed, state or SamplerState())
