"""What a harness is given and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from rollwright.tasks import Hooks, Task
from rollwright.traces import LiveTrace
from rollwright.wire import Stop

from .session import Session


class Surroundings:
    """The things of one rollout that a task's hooks may ask for by name."""

    def __init__(self, task: Task, hooks: Hooks, trace: LiveTrace, supplies: Mapping[str, Any]) -> None:
        self.task = task
        self.hooks = hooks
        self.trace = trace
        self._supplies = supplies

    def supplies(self) -> Mapping[str, Any]:
        """Names to values, as of now."""
        return {**self._supplies, "trace": self.trace, "reply": self.trace.reply}


class Harness(Protocol):
    needs_runtime: bool
    """Whether its program runs inside a box."""

    async def run(self, session: Session, around: Surroundings) -> Stop:
        """Drive the model until the conversation is over. Every model call goes through `session`."""
        ...
