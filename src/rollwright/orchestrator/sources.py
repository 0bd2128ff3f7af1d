"""Where groups come from: training sources that share the batch by ratio. Plain code; it draws tickets and learns from
what became of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rollwright.wire import UsageError

from .groups import Landed, Ticket
from .samplers import SamplerState, make_sampler


class SourcePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What dispatch needs to know of a source: how many tasks it has, not what they are."""

    name: str
    tasks: int
    group_size: int = 8
    """Rollouts of one task, which are each other's baseline."""
    ratio: float = 1.0
    """Its share of the rollouts, measured against the other sources."""
    sampler: str = "shuffled"
    """shuffled: each task once per epoch; curriculum: tasks that are solved sometimes come more often."""

    def __post_init__(self) -> None:
        if self.tasks < 1:
            raise UsageError(f"source {self.name!r} has no tasks to run; name a taskset that has some")
        if self.group_size < 1 or not 0 < self.ratio < float("inf"):
            raise UsageError(f"source {self.name!r} needs a group_size of 1 or more and a ratio above 0")


class SourceState(msgspec.Struct, frozen=True):
    rollouts: int = 0
    sampler: SamplerState = SamplerState()


class SourcesState(msgspec.Struct, frozen=True):
    """What a checkpoint keeps."""

    number: int = 0
    sources: dict[str, SourceState] = {}


class Sources:
    """Draws tickets: the source that is furthest behind its share, then the task that its sampler says."""

    def __init__(self, plans: Sequence[SourcePlan], seed: int, state: SourcesState | None = None) -> None:
        state = state or SourcesState()
        if not plans or len({plan.name for plan in plans}) != len(plans):
            raise UsageError("a run needs sources, each under a name of its own")
        self.number = state.number
        self._plans = {plan.name: plan for plan in plans}
        known = {plan.name: state.sources.get(plan.name, SourceState()) for plan in plans}
        self._rollouts = {name: source.rollouts for name, source in known.items()}
        self._samplers = {
            plan.name: make_sampler(plan.sampler, plan.tasks, seed, known[plan.name].sampler) for plan in plans
        }

    def __repr__(self) -> str:
        return f"<Sources {self.number} tickets drawn from {', '.join(self._plans)}>"

    def peek(self) -> SourcePlan:
        """The source that the next ticket is drawn from."""
        return min(self._plans.values(), key=lambda plan: self._rollouts[plan.name] / plan.ratio)

    def draw(self, version: int) -> Ticket:
        plan = self.peek()
        task, before = self._samplers[plan.name].draw()
        self._rollouts[plan.name] += plan.group_size
        # A task is drawn anew only with attempts that nobody has had, so (task, attempt) names a rollout of the run.
        ticket = Ticket(self.number, plan.name, task, before * plan.group_size, plan.group_size, version)
        self.number += 1
        return ticket

    def learn(self, landed: Landed) -> None:
        rewards = [arrival.reward for arrival in landed.arrivals if arrival.finished]
        self._samplers[landed.ticket.source].learn(landed.ticket.task, rewards)

    def state(self) -> SourcesState:
        sources = {name: SourceState(self._rollouts[name], sampler.state()) for name, sampler in self._samplers.items()}
        return SourcesState(self.number, sources)
