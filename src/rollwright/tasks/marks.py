"""Hooks as they are declared: the decorators, and one method read into a `Hook`. Nothing here calls a hook."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar, overload

from rollwright.wire import TaskBroken

F = TypeVar("F", bound=Callable[..., Any])

MARK = "__rollwright_hook__"

ROLLOUT_NAMES = ("trace", "state", "runtime", "reply")
"""What a hook of one rollout may ask for, by argument name."""
GROUP_NAMES = ("traces", "states", "members")
"""What a hook of a whole group may ask for."""
REQUEST_NAMES = (*ROLLOUT_NAMES, "request")
"""What a hook may ask for before a model call is made: also the call."""
RESPONSE_NAMES = (*REQUEST_NAMES, "response")
"""What a hook may ask for before an answer is seen: also the answer."""


class HookKind(StrEnum):
    SETUP = "setup"
    FINALIZE = "finalize"
    RESPOND = "respond"
    REWARD = "reward"
    METRIC = "metric"
    STOP = "stop"
    GROUP_REWARD = "group reward"
    TOOL = "tool"
    ON_REQUEST = "request hook"
    ON_RESPONSE = "response hook"


_NAMES = {
    HookKind.GROUP_REWARD: GROUP_NAMES,
    HookKind.ON_REQUEST: REQUEST_NAMES,
    HookKind.ON_RESPONSE: RESPONSE_NAMES,
}


@dataclass(frozen=True, slots=True)
class Mark:
    """What a decorator leaves on a function."""

    kind: HookKind
    weight: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """One method of a task type, with everything that calling it needs."""

    name: str
    kind: HookKind
    owner: str
    """Name of the task type, for messages."""
    function: Callable[..., Any]
    wants: tuple[str, ...]
    """Names of the arguments to inject."""
    is_async: bool
    weight: float = 0.0

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name!r} of {self.owner}"

    def injected(self, supplies: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments it asked for, out of what there is at this moment of the rollout."""
        try:
            return {name: supplies[name] for name in self.wants}
        except KeyError as missing:
            raise TaskBroken(f"{self.label} wants {missing}, which does not exist at that moment") from None


@overload
def reward(function: F, /) -> F: ...
@overload
def reward(*, weight: float = 1.0) -> Callable[[F], F]: ...
def reward(function: F | None = None, /, *, weight: float = 1.0) -> F | Callable[[F], F]:
    """A number for one rollout. The rollout's reward is the sum of value times weight over all rewards."""
    return _marking(function, HookKind.REWARD, weight)


@overload
def metric(function: F, /) -> F: ...
@overload
def metric() -> Callable[[F], F]: ...
def metric(function: F | None = None, /) -> F | Callable[[F], F]:
    """A number that is reported and not rewarded."""
    return _marking(function, HookKind.METRIC, 0.0)


@overload
def stop(function: F, /) -> F: ...
@overload
def stop() -> Callable[[F], F]: ...
def stop(function: F | None = None, /) -> F | Callable[[F], F]:
    """Asked after every answer; a true value ends the rollout."""
    return _marking(function, HookKind.STOP, 0.0)


@overload
def group_reward(function: F, /) -> F: ...
@overload
def group_reward(*, weight: float = 1.0) -> Callable[[F], F]: ...
def group_reward(function: F | None = None, /, *, weight: float = 1.0) -> F | Callable[[F], F]:
    """One number for each rollout of a task, given by a method that sees them all."""
    return _marking(function, HookKind.GROUP_REWARD, weight)


@overload
def tool(function: F, /) -> F: ...
@overload
def tool() -> Callable[[F], F]: ...
def tool(function: F | None = None, /) -> F | Callable[[F], F]:
    """A method that the model may call. Its type hints become the schema, its docstring the description."""
    return _marking(function, HookKind.TOOL, 0.0)


def _marking(function: F | None, kind: HookKind, weight: float) -> F | Callable[[F], F]:
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
        raise TaskBroken(f"a {kind} has weight {weight!r}; give a finite number")

    def marked(function: F) -> F:
        if not inspect.isfunction(function):
            raise TaskBroken(f"@{kind} marks a plain method, not {type(function).__name__}")
        setattr(function, MARK, Mark(kind, float(weight)))
        return function

    return marked if function is None else marked(function)


def mark_of(function: Any) -> Mark | None:
    mark = getattr(function, MARK, None)
    return mark if isinstance(mark, Mark) else None


def read_hook(owner: type, name: str, mark: Mark) -> Hook:
    """The method `name` of `owner` as a hook that asks for injected arguments only."""
    function = plain_method(owner, name, mark.kind)
    known = _NAMES.get(mark.kind, ROLLOUT_NAMES)
    wants = argument_names(owner, name, mark.kind, function)
    for want in wants:
        if want not in known:
            label = f"{mark.kind} {name!r} of {owner.__name__}"
            raise TaskBroken(f"{label} asks for {want!r}; what it may ask for is {', '.join(known)}")
    return Hook(
        name=name,
        kind=mark.kind,
        owner=owner.__name__,
        function=function,
        wants=wants,
        is_async=inspect.iscoroutinefunction(function),
        weight=mark.weight,
    )


def plain_method(owner: type, name: str, kind: HookKind) -> Callable[..., Any]:
    function = inspect.getattr_static(owner, name)
    if not inspect.isfunction(function):
        raise TaskBroken(f"{kind} {name!r} of {owner.__name__} must be a plain method, not {type(function).__name__}")
    return function


def argument_names(owner: type, name: str, kind: HookKind, function: Callable[..., Any]) -> tuple[str, ...]:
    """The arguments after `self`. They are passed by name, so each must have one."""
    label = f"{kind} {name!r} of {owner.__name__}"
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise TaskBroken(f"{label} has no 'self' argument")
    for parameter in parameters[1:]:
        if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
            raise TaskBroken(f"{label} has the argument '{parameter}', which cannot be given by name")
    return tuple(parameter.name for parameter in parameters[1:])
