"""The guard that a task's hooks make."""

from __future__ import annotations

from typing import TypeVar

from rollwright.tasks import Refuse, call_on_request, call_on_response, call_stops
from rollwright.wire import ModelCall, ModelReply, Stop

from .contract import Surroundings
from .guard import Refusal

T = TypeVar("T")
_ENDED = "the task ended this rollout"


class TaskGuard:
    """The hooks of one rollout's task. `stop` hooks are asked here for programs; the chat loop asks them by itself."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._stops = around.hooks.stops if around.door is not None else ()

    @property
    def watches_answers(self) -> bool:
        return self._around.hooks.on_response is not None

    async def request(self, call: ModelCall) -> ModelCall | Refusal:
        hook = self._around.hooks.on_request
        if hook is None:
            return call
        return _verdict(await call_on_request(hook, self._around.task, call, self._around.supplies()))

    async def answered(self) -> Stop | None:
        around = self._around
        if self._stops and await call_stops(self._stops, around.task, around.supplies()):
            return Stop.TASK_STOPPED
        return None

    async def response(self, call: ModelCall, reply: ModelReply) -> ModelReply | Refusal:
        hook = self._around.hooks.on_response
        if hook is None:
            return reply
        return _verdict(await call_on_response(hook, self._around.task, call, reply, self._around.supplies()))


def guard_of(around: Surroundings) -> TaskGuard | None:
    """The guard of a rollout; None if its task has nothing to say."""
    hooks = around.hooks
    watches = hooks.on_request or hooks.on_response or (hooks.stops and around.door is not None)
    return TaskGuard(around) if watches else None


def _verdict(said: T | Refuse | Stop) -> T | Refusal:
    if isinstance(said, Refuse):
        return Refusal(said.reason)
    if isinstance(said, Stop):
        return Refusal(_ENDED, said)
    return said
