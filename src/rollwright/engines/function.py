"""An engine that is a Python function in this process: for an author's first test of a task, and for measuring what
Rollwright itself costs. No socket, no dialect."""

from __future__ import annotations

from collections.abc import Callable

from rollwright.dialects import ImageStore
from rollwright.wire import End, Finish, Message, ModelCall, ModelReply, assistant, events_of

from .contract import Ear, tell

Answer = str | Message | ModelReply


class FunctionEngine:
    """Answers each call with what `function` says."""

    def __init__(self, function: Callable[[ModelCall], Answer]) -> None:
        self._function = function
        self.images = ImageStore()

    async def complete(self, call: ModelCall) -> ModelReply:
        answer = self._function(call)
        if isinstance(answer, ModelReply):
            return answer
        message = assistant(answer) if isinstance(answer, str) else answer
        return ModelReply(message, Finish.TOOL_CALLS if message.tool_calls else Finish.STOP)

    async def stream(self, call: ModelCall, ear: Ear) -> End:
        return await tell(ear, events_of(await self.complete(call)))

    async def count(self, call: ModelCall) -> int | None:
        """A function has no tokens."""
        return None

    async def probe(self) -> None:
        """A function is always there."""

    async def close(self) -> None:
        self.images.close()
