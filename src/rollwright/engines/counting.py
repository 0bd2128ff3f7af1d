"""How long a prompt is, asked of an endpoint that counts: the messages API has a path for it. Nothing is guessed."""

from __future__ import annotations

import asyncio

from rollwright.dialects import Images
from rollwright.dialects.messages import CountDialect
from rollwright.wire import EngineError, ModelCall, WireError

from .config import RelayConfig
from .courier import Courier
from .endpoint import find_endpoint

_DEADLINE_S = 20.0


class Counter:
    """Asks one endpoint, beside its model calls: a count waits for none of them and uses up none of their slots."""

    def __init__(self, config: RelayConfig) -> None:
        self._dialect = CountDialect()
        self._courier = Courier(find_endpoint(config, self._dialect), self._dialect, config)

    async def count(self, call: ModelCall, images: Images) -> int | None:
        """None where the endpoint does not say: a server that speaks the dialect need not have this path."""
        try:
            async with asyncio.timeout(_DEADLINE_S):
                body = self._dialect.write_request(call, images)
                return (await self._courier.complete(call, body, 0)).usage.prompt_tokens
        except (EngineError, WireError, TimeoutError):
            return None

    async def close(self) -> None:
        await self._courier.close()
