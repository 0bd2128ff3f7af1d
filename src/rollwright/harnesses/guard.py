"""What a task may say about model calls while they are made: change one, refuse it, or end the rollout."""

from __future__ import annotations

from typing import Protocol

import msgspec

from rollwright.wire import ModelCall, ModelReply, Stop


class Refusal(msgspec.Struct, frozen=True):
    """A call that is not made, or whose answer is not shown."""

    message: str
    """Why, for the program that asked."""
    stop: Stop | None = None
    """Set where no other call will be made either."""


class Guard(Protocol):
    async def request(self, call: ModelCall) -> ModelCall | Refusal:
        """Before the engine is asked: the call as it is to be made."""
        ...

    async def response(self, call: ModelCall, reply: ModelReply) -> ModelReply | Refusal:
        """After the answer is on record and before anyone sees it: the answer as it is to be seen."""
        ...

    watches_answers: bool
    """Whether `response` wants to see whole answers before they are delivered."""
