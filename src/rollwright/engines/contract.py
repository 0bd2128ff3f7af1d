"""Where tokens come from, as the rest of the house sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from rollwright.dialects import ImageStore
from rollwright.wire import Delta, End, Event, ModelCall, ModelReply, WireError


class Ear(Protocol):
    """Who listens to a stream. It is told of each delta in the very moment in which it arrives, within the callback
    that brings it: a task that wakes for every piece of a stream costs more than all that is done with the piece."""

    def hear(self, delta: Delta) -> bool:
        """Whether it takes more right away; if not, it is told nothing until it is `ready`. What it raises ends the
        call and reaches whoever awaits it."""
        ...

    async def ready(self) -> None:
        """Return when it takes more. It keeps a deadline of its own."""
        ...


class Engine(Protocol):
    """A model behind some API. Failures are EngineError; cancelling a call cancels it at the engine."""

    @property
    def images(self) -> ImageStore:
        """Where it reads the bytes of the images that calls show."""
        ...

    async def complete(self, call: ModelCall) -> ModelReply: ...

    async def stream(self, call: ModelCall, ear: Ear) -> End:
        """Tell `ear` what the model says as it arrives, and return how it ended. A stream that breaks raises
        EngineUnavailable."""
        ...

    async def count(self, call: ModelCall) -> int | None:
        """How many tokens the prompt of a call is, as the model would see it; None where nobody here knows."""
        ...

    async def probe(self) -> None:
        """Ask the endpoint for one token's worth of proof that it answers; EngineError says what is wrong."""
        ...

    async def close(self) -> None: ...


async def tell(ear: Ear, events: Iterable[Event]) -> End:
    """Events that are all there, told as fast as they are heard."""
    for event in events:
        if isinstance(event, End):
            return event
        if not ear.hear(event):
            await ear.ready()
    raise WireError("the stream was cut before its end")
