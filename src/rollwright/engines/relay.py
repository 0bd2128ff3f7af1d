"""The client of any OpenAI-compatible or Anthropic endpoint.

It writes calls in the endpoint's dialect and has them carried: sent again if that may help, within the rate limits, as
many at once as the endpoint bears (`courier`). It does not read or write a wire format (`dialects` does) and keeps no
conversation.
"""

from __future__ import annotations

import asyncio
import random
from types import TracebackType
from typing import Self

import msgspec

from rollwright.dialects import Dialect, ImageStore, dialect_named
from rollwright.wire import (
    End,
    EngineRefused,
    EngineUnavailable,
    ModelCall,
    ModelReply,
    Sampling,
    WireError,
    user,
)

from .channel import RelayStats, Sleep
from .config import RelayConfig
from .contract import Ear
from .counting import Counter
from .courier import Courier
from .endpoint import find_endpoint
from .journey import Obituary

_PROBE_DEADLINE_S = 60.0
_PROBE_RETRIES = 1


class RelayEngine:
    """An Engine over HTTP. `model` is the model of calls that name none, and of the probe."""

    def __init__(
        self,
        config: RelayConfig,
        model: str = "",
        *,
        images: ImageStore | None = None,
        dialect: Dialect | None = None,
        obituary: Obituary = lambda: None,
        sleep: Sleep = asyncio.sleep,
        dice: random.Random | None = None,
    ) -> None:
        self.model = model
        self._config = config
        self.obituary = obituary
        """What its own process died of; None while that lives, or if it has none."""
        self._dialect = dialect or dialect_named(config.dialect)
        self._endpoint = find_endpoint(config, self._dialect)
        self._courier = Courier(self._endpoint, self._dialect, config, obituary=obituary, sleep=sleep, dice=dice)
        self._counter = Counter(config) if self._dialect.name == "messages" else None
        self.images = ImageStore() if images is None else images
        """Where the bytes of the images in calls are read from; whoever makes calls puts them there."""
        self._owns_images = images is None

    @property
    def stats(self) -> RelayStats:
        """A snapshot of the counters."""
        return self._courier.stats

    async def complete(self, call: ModelCall) -> ModelReply:
        return await self._courier.complete(*self._write(call, stream=False))

    async def stream(self, call: ModelCall, ear: Ear) -> End:
        call, body = self._write(call, stream=True)
        return await self._courier.stream(call, body, self._dialect.stream_reader, ear)

    async def count(self, call: ModelCall) -> int | None:
        """What the endpoint says. Only the messages API can be asked."""
        if self._counter is None:
            return None
        return await self._counter.count(self._own(call, stream=False), self.images)

    async def probe(self) -> None:
        """One small call that is sent again once at most: a wrong address, key or model is known in seconds."""
        # Fewer than 16 tokens are refused by some reasoning models.
        call = ModelCall(self.model, (user("Say ok."),), sampling=Sampling(max_tokens=16))
        try:
            async with asyncio.timeout(_PROBE_DEADLINE_S):
                await self._courier.complete(*self._write(call, stream=False), _PROBE_RETRIES)
        except TimeoutError as error:
            text = f"{self._endpoint.name} did not answer a probe within {_PROBE_DEADLINE_S:.0f} s; check the base_url"
            raise EngineUnavailable(text) from error

    async def close(self) -> None:
        """Idempotent. Calls in flight end with EngineUnavailable."""
        await self._courier.close()
        if self._counter is not None:
            await self._counter.close()
        if self._owns_images:
            self.images.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        now = self.stats
        state = f"{now.in_flight} in flight, {now.waiting} waiting, limit {now.limit}"
        return f"<RelayEngine {self._endpoint.name} {self._dialect.name}: {state}>"

    def _own(self, call: ModelCall, *, stream: bool) -> ModelCall:
        """The call as it is made of this endpoint."""
        foreign = call.dialect not in ("", self._dialect.name)
        if call.stream is stream and call.model and not (foreign and call.extra):
            return call
        # Fields that another dialect does not know mean nothing in this one.
        extra = {} if foreign else call.extra
        return msgspec.structs.replace(call, stream=stream, model=call.model or self.model, extra=extra)

    def _write(self, call: ModelCall, *, stream: bool) -> tuple[ModelCall, bytes]:
        call = self._own(call, stream=stream)
        try:
            return call, self._dialect.write_request(call, self.images)
        except WireError as error:
            raise EngineRefused(f"the call cannot be written for {self._endpoint.name}: {error}") from error
