"""Hooks that watch model calls: `on_request` sees a call before it is made, `on_response` an answer before it is seen.

Either returns None to let it pass, another call or answer to put in its place, `Refuse` to let the program hear no, or
`Stop.TASK_STOPPED` to end the rollout. The trace keeps what the engine was asked and what it said, whatever a hook
makes of it afterwards, so a rewritten answer is a message that nobody sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rollwright.wire import Finish, Message, ModelCall, ModelReply, Stop, TaskBroken, assistant

from .calls import call_hook
from .marks import Hook
from .task import Task


class Refuse(msgspec.Struct, frozen=True):
    """The program hears no, and why; the rollout goes on."""

    reason: str


async def call_on_request(
    hook: Hook, task: Task, call: ModelCall, supplies: Mapping[str, Any]
) -> ModelCall | Refuse | Stop:
    said = await call_hook(hook, task, {**supplies, "request": call})
    if said is None:
        return call
    if isinstance(said, ModelCall | Refuse) or said is Stop.TASK_STOPPED:
        return said
    raise _nonsense(hook, said, "a ModelCall")


async def call_on_response(
    hook: Hook, task: Task, call: ModelCall, reply: ModelReply, supplies: Mapping[str, Any]
) -> ModelReply | Refuse | Stop:
    said = await call_hook(hook, task, {**supplies, "request": call, "response": reply})
    if said is None:
        return reply
    if isinstance(said, ModelReply | Refuse) or said is Stop.TASK_STOPPED:
        return said
    if isinstance(said, str | Message):
        return _instead(reply, assistant(said) if isinstance(said, str) else said)
    raise _nonsense(hook, said, "text, a Message or a ModelReply")


def _instead(reply: ModelReply, message: Message) -> ModelReply:
    """Nobody sampled it, so there are no tokens of it."""
    finish = Finish.TOOL_CALLS if message.tool_calls else Finish.STOP
    return msgspec.structs.replace(reply, message=message, finish=finish, tokens=None)


def _nonsense(hook: Hook, said: Any, wanted: str) -> TaskBroken:
    text = f"{hook.label} returned {repr(said)[:80]}"
    return TaskBroken(f"{text}; return None, {wanted}, Refuse or Stop.TASK_STOPPED")
