"""What may be said about model calls while they are made: change one, refuse it, or end the rollout."""

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
    @property
    def watches_answers(self) -> bool:
        """Whether `response` wants to see whole answers before they are delivered."""
        ...

    async def request(self, call: ModelCall) -> ModelCall | Refusal:
        """Before the engine is asked: the call as it is to be made."""
        ...

    async def answered(self) -> Stop | None:
        """After an answer is on record: whether no other call is to be made."""
        ...

    async def response(self, call: ModelCall, reply: ModelReply) -> ModelReply | Refusal:
        """After that: the answer as it is to be seen."""
        ...
