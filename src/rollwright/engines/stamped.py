"""An engine whose answers tell the policy version that spoke, where the endpoint behind it does not.

A call is stamped with the version that was served when it began. If new weights come while it is sampled, its later tokens
are newer than the stamp: staleness is never told too small.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from rollwright.dialects import ImageStore
from rollwright.wire import End, Event, ModelCall, ModelReply

from .contract import Engine


class StampedEngine:
    """Passes everything on; `policy_version` is set by whoever knows what is served."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.policy_version = 0

    @property
    def images(self) -> ImageStore:
        return self._engine.images

    async def complete(self, call: ModelCall) -> ModelReply:
        version = self.policy_version
        reply = await self._engine.complete(call)
        if reply.policy_version or not version:
            return reply
        return msgspec.structs.replace(reply, policy_version=version)

    async def stream(self, call: ModelCall) -> AsyncGenerator[Event, None]:
        version = self.policy_version
        async with aclosing(self._engine.stream(call)) as events:
            async for event in events:
                if isinstance(event, End) and version and not event.policy_version:
                    yield msgspec.structs.replace(event, policy_version=version)
                else:
                    yield event

    async def probe(self) -> None:
        await self._engine.probe()

    async def close(self) -> None:
        await self._engine.close()
