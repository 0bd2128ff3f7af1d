"""What a harness is given and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from rollwright.tasks import Hooks, Task, Toolbox
from rollwright.traces import LiveTrace
from rollwright.wire import Stop

from .session import Session


class Door(msgspec.Struct, frozen=True):
    """Where a program in the box finds its model. It closes when the rollout ends."""

    url: str
    """The root of the host as the program sees it: a dialect's path is added to it."""
    key: str
    """Opens model calls of this rollout and nothing else. Every dialect carries it where it carries its API key."""
    state_key: str
    """Opens the rollout's tools and its task state. A program that only needs a model never learns it."""
    tools_url: str = ""
    """Where the rollout's tools are served by MCP; empty if it has none."""
    tools_key: str = ""
    """Opens the tools and nothing else."""


class Surroundings:
    """The things of one rollout that a task's hooks may ask for by name, and the door for its program."""

    def __init__(
        self,
        task: Task,
        hooks: Hooks,
        trace: LiveTrace,
        supplies: Mapping[str, Any],
        tools: Toolbox,
        door: Door | None = None,
    ) -> None:
        self.task = task
        self.hooks = hooks
        self.trace = trace
        self.tools = tools
        """What the model may call: the task's own tools and the environment's."""
        self.door = door
        """Open where the harness asked for one by `needs_door`."""
        self._supplies = supplies

    def supplies(self) -> Mapping[str, Any]:
        """Names to values, as of now."""
        return {**self._supplies, "trace": self.trace, "reply": self.trace.reply}


class Harness(Protocol):
    needs_runtime: bool
    """Whether its program runs inside a box."""
    needs_door: bool
    """Whether its program makes model calls of its own, over HTTP."""

    async def run(self, session: Session, around: Surroundings) -> Stop:
        """Drive the model until the conversation is over. Every model call goes through `session`."""
        ...
