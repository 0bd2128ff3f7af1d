"""The hooks of a task type, found and checked once and kept. No call of a hook looks at a signature again."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

from rollwright.wire import TaskBroken, ToolSpec

from .marks import Hook, HookKind, Mark, mark_of, read_hook
from .task import Task
from .tools import ToolHook, read_tool

_BY_NAME = {
    "setup": HookKind.SETUP,
    "finalize": HookKind.FINALIZE,
    "respond": HookKind.RESPOND,
    "on_request": HookKind.ON_REQUEST,
    "on_response": HookKind.ON_RESPONSE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What a task type does besides holding data. Within a kind, the order is that of definition, bases first."""

    setup: Hook | None = None
    finalize: Hook | None = None
    respond: Hook | None = None
    on_request: Hook | None = None
    on_response: Hook | None = None
    rewards: tuple[Hook, ...] = ()
    metrics: tuple[Hook, ...] = ()
    stops: tuple[Hook, ...] = ()
    group_rewards: tuple[Hook, ...] = ()
    tools: tuple[ToolHook, ...] = ()
    needs_runtime: bool = False
    """Some hook asks for `runtime`, so a rollout of this task needs a box."""

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        return tuple(hook.spec for hook in self.tools)

    def tool(self, name: str) -> ToolHook | None:
        return next((hook for hook in self.tools if hook.name == name), None)


@cache
def hooks_of(task_type: type[Task]) -> Hooks:
    """The hooks of `task_type`. TaskBroken says what is wrong with one of them."""
    found: list[Hook] = []
    tools: list[ToolHook] = []
    for name, mark in _marked(task_type).items():
        if mark.kind is HookKind.TOOL:
            tools.append(read_tool(task_type, name))
        else:
            found.append(read_hook(task_type, name, mark))

    def only(kind: HookKind) -> Hook | None:
        return next((hook for hook in found if hook.kind is kind), None)

    def every(kind: HookKind) -> tuple[Hook, ...]:
        return tuple(hook for hook in found if hook.kind is kind)

    return Hooks(
        setup=only(HookKind.SETUP),
        finalize=only(HookKind.FINALIZE),
        respond=only(HookKind.RESPOND),
        on_request=only(HookKind.ON_REQUEST),
        on_response=only(HookKind.ON_RESPONSE),
        rewards=every(HookKind.REWARD),
        metrics=every(HookKind.METRIC),
        stops=every(HookKind.STOP),
        group_rewards=every(HookKind.GROUP_REWARD),
        tools=tuple(tools),
        needs_runtime=any("runtime" in hook.wants for hook in (*found, *tools)),
    )


def _marked(task_type: type[Task]) -> dict[str, Mark]:
    """The marks that hold for `task_type`, by method name, in order of first definition."""
    names = dict.fromkeys(name for base in reversed(task_type.__mro__) for name in vars(base))
    marks: dict[str, Mark] = {}
    for name in names:
        mark = _mark_in(task_type, name)
        if mark is not None:
            marks[name] = mark
    return marks


def _mark_in(task_type: type[Task], name: str) -> Mark | None:
    method: Any = inspect.getattr_static(task_type, name)
    unwrapped = getattr(method, "__func__", method)
    mark = mark_of(unwrapped)
    if name in _BY_NAME and method is not None:
        if mark is not None:
            raise TaskBroken(f"{name!r} of {task_type.__name__} is a {mark.kind} and has a name with its own meaning")
        return Mark(_BY_NAME[name])
    if mark is None and inspect.isfunction(unwrapped):
        _refuse_lost_mark(task_type, name)
    return mark


def _refuse_lost_mark(task_type: type[Task], name: str) -> None:
    """An override without its decorator would silently take a reward away. Setting the name to None says it aloud."""
    for base in task_type.__mro__[1:]:
        lost = mark_of(vars(base).get(name))
        if lost is not None:
            raise TaskBroken(
                f"{name!r} of {task_type.__name__} overrides a {lost.kind} of {base.__name__} without saying what it "
                f"is; decorate it, or set it to None to take it away"
            )
