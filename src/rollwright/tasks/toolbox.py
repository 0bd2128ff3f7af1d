"""The tools of one rollout: its task's own and those of its environment's toolsets, as one list. Whoever drives the
model, a chat loop or a program over MCP, calls them here."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollwright.wire import Message, TaskBroken, ToolCall, ToolSpec

from .calls import call_tool
from .hooks import hooks_of
from .task import Task
from .tools import Gallery, refusal
from .toolset import Toolset


class Toolbox:
    """Tools that one rollout may call. `supplies` gives what tools may ask for, as of now; `gallery` where their
    pictures go. TaskBroken if the task and a toolset have tools of the same name."""

    def __init__(
        self,
        task: Task,
        toolsets: Sequence[Toolset],
        supplies: Callable[[], Mapping[str, Any]],
        gallery: Callable[[], Gallery],
    ) -> None:
        self.rollout = secrets.token_hex(8)
        """The key under which toolsets keep what is this rollout's."""
        self._task = task
        self._own = hooks_of(type(task))
        self._supplies = supplies
        self._gallery = gallery
        self._owners = {spec.name: toolset for toolset in toolsets for spec in toolset.specs}
        self._turn = asyncio.Lock()
        self.specs: tuple[ToolSpec, ...] = (
            *self._own.tool_specs,
            *(spec for toolset in toolsets for spec in toolset.specs),
        )
        for spec in self._own.tool_specs:
            if spec.name in self._owners:
                owner = type(self._owners[spec.name]).__name__
                raise TaskBroken(f"task {task.id!r} and toolset {owner} both have a tool {spec.name!r}")

    def __contains__(self, name: str) -> bool:
        return name in self._owners or self._own.tool(name) is not None

    async def call(self, call: ToolCall) -> Message:
        """The result, as a message of role tool. A model that calls what is not there hears which tools are."""
        # One after the other: tools share the rollout's state, and a model that calls two expects an order.
        async with self._turn:
            toolset = self._owners.get(call.name)
            if toolset is not None:
                return await toolset.call(call, {**self._supplies(), "rollout": self.rollout}, self._gallery())
            hook = self._own.tool(call.name)
            if hook is not None:
                return await call_tool(hook, self._task, call, self._supplies(), self._gallery())
        names = ", ".join(spec.name for spec in self.specs) or "none"
        return refusal(call, f"There is no tool {call.name!r}. The tools are: {names}.")
