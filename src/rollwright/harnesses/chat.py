"""A chat loop in this process: the model speaks, tools answer, the task may speak back. No program, no box needed."""

from __future__ import annotations

from collections.abc import Sequence

from rollwright.tasks import call_hook, call_tool
from rollwright.traces import Phase
from rollwright.wire import Message, Stop, ToolCall, user

from .contract import Surroundings
from .session import Session


class ChatHarness:
    needs_runtime = False

    async def run(self, session: Session, around: Surroundings) -> Stop:
        conversation = session.begin(around.task.opening())
        while True:
            answer = await session.sample(conversation)
            if isinstance(answer, Stop):
                return answer
            if await _task_says_stop(around):
                return Stop.TASK_STOPPED
            said = await _next_words(around, answer.message)
            if not said:
                return Stop.FINISHED
            conversation.say(*said)


async def _task_says_stop(around: Surroundings) -> bool:
    for hook in around.hooks.stops:
        if await call_hook(hook, around.task, around.supplies()):
            return True
    return False


async def _next_words(around: Surroundings, answer: Message) -> Sequence[Message]:
    """What follows an answer: results of the tools it called, else what the task replies, else nothing."""
    with around.trace.phase(Phase.TOOL):
        if answer.tool_calls:
            # One after the other: tools share the rollout's state, and a model that calls two expects an order.
            return [await _use_tool(around, call) for call in answer.tool_calls]
        if around.hooks.respond is None:
            return []
        said = await call_hook(around.hooks.respond, around.task, around.supplies())
    if said is None:
        return []
    if isinstance(said, str):
        return [user(said)]
    return [said] if isinstance(said, Message) else list(said)


async def _use_tool(around: Surroundings, call: ToolCall) -> Message:
    return await call_tool(around.hooks, around.task, call, around.supplies())
