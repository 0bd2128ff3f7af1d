"""A chat loop in this process: the model speaks, tools answer, the task may speak back. No program, no box needed."""

from __future__ import annotations

from collections.abc import Sequence

from rollwright.tasks import call_respond, call_stops
from rollwright.traces import Phase
from rollwright.wire import Message, Stop

from .contract import Surroundings
from .session import Session


class ChatHarness:
    needs_runtime = False
    needs_door = False

    async def run(self, session: Session, around: Surroundings) -> Stop:
        conversation = session.begin(around.task.opening())
        while True:
            answer = await session.sample(conversation)
            if isinstance(answer, Stop):
                return answer
            with around.trace.phase(Phase.TOOL):
                if await _task_says_stop(around):
                    return Stop.TASK_STOPPED
                said = await _next_words(around, answer.message)
            if not said:
                return Stop.FINISHED
            conversation.say(*said)


async def _task_says_stop(around: Surroundings) -> bool:
    stops = around.hooks.stops
    return bool(stops) and bool(await call_stops(stops, around.task, around.supplies()))


async def _next_words(around: Surroundings, answer: Message) -> Sequence[Message]:
    """What follows an answer: results of the tools it called, else what the task replies, else nothing."""
    task, hooks = around.task, around.hooks
    if answer.tool_calls:
        return [await around.tools.call(call) for call in answer.tool_calls]
    if hooks.respond is None:
        return ()
    return await call_respond(hooks.respond, task, around.supplies())
