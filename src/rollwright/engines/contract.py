"""Where tokens come from, as the rest of the house sees it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from rollwright.dialects import ImageStore
from rollwright.wire import Event, ModelCall, ModelReply


class Engine(Protocol):
    """A model behind some API. Failures are EngineError; cancelling a call cancels it at the engine."""

    @property
    def images(self) -> ImageStore:
        """Where it reads the bytes of the images that calls show."""
        ...

    async def complete(self, call: ModelCall) -> ModelReply: ...

    def stream(self, call: ModelCall) -> AsyncGenerator[Event, None]:
        """Events as they arrive, `End` last. A stream that breaks raises EngineUnavailable. Whoever may stop before
        `End` closes the generator (`contextlib.aclosing`), which drops the connection."""
        ...

    async def probe(self) -> None:
        """Ask the endpoint for one token's worth of proof that it answers; EngineError says what is wrong."""
        ...

    async def close(self) -> None: ...
