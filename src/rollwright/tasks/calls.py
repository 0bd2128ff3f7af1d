"""Calling hooks: where user code meets ours.

`async def` hooks run on the loop, plain `def` hooks in a few threads; those that follow one another share one hop, and
nothing to do is no hop. An error of ours (RolloutError) passes through, since its layer is already right: a box that
dies under a reward is the box's fault. Anything else that a hook raises is a TaskBroken, or a ToolError for a tool.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from rollwright.wire import Message, RolloutError, Score, TaskBroken, ToolCall, ToolError, user

from .marks import Hook
from .task import Task, TraceView
from .threads import HOOK_THREADS
from .tools import Gallery, ToolHook, ToolRefusal, read_arguments, refusal, show_result


async def call_hook(hook: Hook, task: Task, supplies: Mapping[str, Any]) -> Any:
    """What the hook returned."""
    return (await _call_all((hook,), task, supplies))[0]


async def call_respond(hook: Hook, task: Task, supplies: Mapping[str, Any]) -> tuple[Message, ...]:
    """The messages to go on with; none if the task has nothing more to say."""
    said = await call_hook(hook, task, supplies)
    if said is None:
        return ()
    if isinstance(said, str):
        return (user(said),)
    messages = (said,) if isinstance(said, Message) else said
    if isinstance(messages, Sequence) and all(isinstance(message, Message) for message in messages):
        return tuple(messages)
    raise TaskBroken(f"{hook.label} returned {_shown(said)}; return None, text, a Message or a list of them")


async def call_stops(hooks: Sequence[Hook], task: Task, supplies: Mapping[str, Any]) -> str:
    """The name of the first hook that wants the rollout to end; empty if none does."""
    verdicts = await _call_all(hooks, task, supplies)
    return next((hook.name for hook, verdict in zip(hooks, verdicts, strict=True) if _truth(hook, verdict)), "")


async def call_scores(hooks: Sequence[Hook], task: Task, supplies: Mapping[str, Any]) -> dict[str, Score]:
    """Rewards and metrics of one rollout."""
    values = await _call_all(hooks, task, supplies)
    return {hook.name: _score(hook, value) for hook, value in zip(hooks, values, strict=True)}


async def call_group(
    hooks: Sequence[Hook],
    task: Task,
    traces: Sequence[TraceView],
    states: Sequence[dict[str, Any]],
    members: Sequence[Any] = (),
) -> list[dict[str, Score]]:
    """Group rewards, one dict for each trace. `members` are what a hook goes on with a conversation by."""
    scores: list[dict[str, Score]] = [{} for _ in traces]
    supplies = {"traces": list(traces), "states": list(states), "members": list(members)}
    for hook, values in zip(hooks, await _call_all(hooks, task, supplies), strict=True):
        for into, value in zip(scores, _one_each(hook, values, len(traces)), strict=True):
            into[hook.name] = _score(hook, value)
    return scores


async def call_tool(
    hook: ToolHook, owner: object, call: ToolCall, supplies: Mapping[str, Any], gallery: Gallery | None = None
) -> Message:
    """The result of a model's call, as a message of role tool."""
    try:
        arguments = read_arguments(hook, call)
        value = await _run(hook, partial(hook.function, owner, **hook.injected(supplies), **arguments))
    except ToolRefusal as no:
        return refusal(call, str(no))
    return show_result(hook, call, value, gallery)


async def _call_all(hooks: Sequence[Hook], task: Task, supplies: Mapping[str, Any]) -> list[Any]:
    """The values of `hooks`, called in order."""
    bound = [(hook, partial(hook.function, task, **hook.injected(supplies))) for hook in hooks]
    values: list[Any] = []
    for is_async, stage in groupby(bound, key=lambda pair: pair[0].is_async):
        if is_async:
            values += [await _run(hook, call) for hook, call in stage]
        else:
            values += await _run_plain(list(stage))
    return values


async def _run(hook: Hook, call: Callable[[], Any]) -> Any:
    if not hook.is_async:
        return (await _run_plain([(hook, call)]))[0]
    with _blaming(hook):
        return await call()


async def _run_plain(calls: Sequence[tuple[Hook, Callable[[], Any]]]) -> list[Any]:
    """Plain functions, in one hop. One that turns out to return an awaitable (a wrapped `async def`) is awaited."""
    values = await HOOK_THREADS.run(partial(_call_in_thread, calls))
    for index, (hook, _) in enumerate(calls):
        if inspect.isawaitable(values[index]):
            with _blaming(hook):
                values[index] = await values[index]
    return values


def _call_in_thread(calls: Sequence[tuple[Hook, Callable[[], Any]]]) -> list[Any]:
    values = []
    for hook, call in calls:
        with _blaming(hook):
            values.append(call())
    return values


@contextmanager
def _blaming(hook: Hook) -> Iterator[None]:
    try:
        yield
    except RolloutError:
        raise
    except ToolRefusal as no:
        if isinstance(hook, ToolHook):
            raise
        raise TaskBroken(f"{hook.label} raised ToolRefusal, which only tools may: {no}") from no
    except (Exception, SystemExit) as error:  # The border to user code; `sys.exit` in a hook must not end the run.
        kind = ToolError if isinstance(hook, ToolHook) else TaskBroken
        raise kind(f"{hook.label} raised {type(error).__name__}: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    line = " ".join(str(error).split())
    return line if len(line) <= 300 else line[:300] + "..."


def _score(hook: Hook, value: Any) -> Score:
    if isinstance(value, numbers.Real | np.bool_):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return Score(number, hook.weight)
    raise TaskBroken(f"{hook.label} returned {_shown(value)}; return a finite number")


def _truth(hook: Hook, value: Any) -> bool:
    if isinstance(value, bool | np.bool_) or value is None:
        return bool(value)
    raise TaskBroken(f"{hook.label} returned {_shown(value)}; return True or False")


def _one_each(hook: Hook, values: Any, count: int) -> Sequence[Any]:
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, list | tuple):
        raise TaskBroken(f"{hook.label} returned {_shown(values)}; return a list with one number for each trace")
    if len(values) != count:
        raise TaskBroken(f"{hook.label} returned {len(values)} numbers for {count} traces; return one for each")
    return values


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, numbers.Real) else str(value)
    return text if len(text) <= 80 else text[:80] + "..."
