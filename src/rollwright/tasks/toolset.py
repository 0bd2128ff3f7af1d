"""Toolsets: tools that belong to an environment, not to a task, and that all its rollouts share.

A toolset is opened once, serves every rollout, and is closed when the environment is. What it keeps for one rollout it
keeps under the rollout's key, which a tool asks for by the name `rollout`:

    class Notes(Toolset):
        def __init__(self):
            self._notes = defaultdict(list)

        @tool
        def note(self, rollout: str, text: str) -> str:
            self._notes[rollout].append(text)
            return "noted"

        async def leave(self, rollout):
            self._notes.pop(rollout, None)

How a rollout finds the tool that its model calls is in `toolbox`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from rollwright.wire import Message, RollwrightError, TaskBroken, ToolCall, ToolSpec, UsageError

from .calls import call_tool
from .marks import ROLLOUT_NAMES, HookKind, mark_of
from .tools import Gallery, ToolHook, read_tool

log = logging.getLogger("rollwright.tasks")

TOOLSET_NAMES = (*ROLLOUT_NAMES, "rollout")
"""What a tool of a toolset may ask for, by argument name."""
OPEN_S = 120.0
CLOSE_S = 30.0


class Toolset:
    """Tools with a life of their own. Methods marked `@tool` are offered to the models of all rollouts."""

    async def open(self) -> None:
        """Before the first rollout. What it raises ends the run before it begins."""

    async def close(self) -> None:
        """After the last rollout, also where `open` failed halfway."""

    async def leave(self, rollout: str) -> None:
        """The rollout with this key is over: let go of what was kept for it. Called once for each rollout."""

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as models see them; looked at once the toolset is open."""
        return tuple(hook.spec for hook in self._hooks().values())

    @property
    def needs_runtime(self) -> bool:
        """Whether some tool asks for `runtime`, so that every rollout needs a box."""
        return any("runtime" in hook.wants for hook in self._hooks().values())

    def _hooks(self) -> Mapping[str, ToolHook]:
        return toolset_hooks(type(self))

    async def call(self, call: ToolCall, supplies: Mapping[str, Any], gallery: Gallery) -> Message:
        """The result of a call of one of `specs`."""
        return await call_tool(self._hooks()[call.name], self, call, supplies, gallery)


_READ: dict[type[Toolset], Mapping[str, ToolHook]] = {}


def toolset_hooks(kind: type[Toolset]) -> Mapping[str, ToolHook]:
    """The marked methods of a toolset by name, bases first, read once. TaskBroken says what is wrong with one."""
    if kind not in _READ:
        _READ[kind] = _read_all(kind)
    return _READ[kind]


def _read_all(kind: type[Toolset]) -> Mapping[str, ToolHook]:
    names = dict.fromkeys(name for base in reversed(kind.__mro__) for name in vars(base))
    marks = {name: mark_of(inspect.getattr_static(kind, name)) for name in names}
    for name, mark in marks.items():
        if mark is not None and mark.kind is not HookKind.TOOL:
            raise TaskBroken(f"{name!r} of {kind.__name__} is a {mark.kind}; a toolset has tools only")
    return {name: read_tool(kind, name, TOOLSET_NAMES) for name, mark in marks.items() if mark is not None}


@asynccontextmanager
async def opened(toolsets: Sequence[Toolset], *, within_s: float = OPEN_S) -> AsyncIterator[tuple[Toolset, ...]]:
    """Every toolset open until the block ends; then all of them are closed, in the opposite order."""
    async with AsyncExitStack() as stack:
        for toolset in toolsets:
            stack.push_async_callback(_close, toolset)
            await _open(toolset, within_s)
        _check_names(toolsets)
        yield tuple(toolsets)


async def _open(toolset: Toolset, within_s: float) -> None:
    name = type(toolset).__name__
    try:
        async with asyncio.timeout(within_s) as clock:
            await toolset.open()
    except RollwrightError:
        raise
    except Exception as error:  # The border to the author's code.
        if isinstance(error, TimeoutError) and clock.expired():
            raise UsageError(f"toolset {name} did not open within {within_s:g} s") from error
        raise UsageError(f"toolset {name} did not open: {type(error).__name__}: {error}") from error


async def _close(toolset: Toolset) -> None:
    """The run is over, whatever this does: trouble is told and goes no further."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await toolset.close()
    except Exception as error:  # The border to the author's code.
        log.warning("toolset %s was not closed: %s: %s", type(toolset).__name__, type(error).__name__, error)


def _check_names(toolsets: Sequence[Toolset]) -> None:
    owners: dict[str, str] = {}
    for toolset in toolsets:
        owner = type(toolset).__name__
        try:
            specs = toolset.specs
        except TaskBroken as error:
            raise UsageError(f"toolset {owner} cannot be used: {error}") from error
        for spec in specs:
            if spec.name in owners:
                raise UsageError(
                    f"both {owners[spec.name]} and {owner} have a tool {spec.name!r}; names must be unique"
                )
            owners[spec.name] = owner


async def leave_all(toolsets: Sequence[Toolset], rollout: str) -> None:
    """Tell every toolset that a rollout is over. Trouble is told and spoils neither the rollout nor other toolsets."""
    for toolset in toolsets:
        try:
            await toolset.leave(rollout)
        except Exception as error:  # The border to the author's code.
            name = type(toolset).__name__
            log.warning("toolset %s kept what a rollout left: %s: %s", name, type(error).__name__, error)
