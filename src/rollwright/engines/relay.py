"""The client of any OpenAI-compatible or Anthropic endpoint.

It sends calls, sends again what may pass, keeps to rate limits, and finds by itself how many calls the endpoint bears.
It does not read or write a wire format (`dialects` does) and keeps no conversation. A stream is sent again until its
first event was handed out and never after: what was delivered cannot be taken back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

import msgspec

from rollwright.dialects import Dialect, ImageStore, dialect_named
from rollwright.wire import (
    EngineError,
    EngineRefused,
    EngineUnavailable,
    Event,
    ModelCall,
    ModelReply,
    Sampling,
    WireError,
    user,
)

from .channel import Channel, RelayStats, Sleep
from .config import RelayConfig
from .endpoint import find_endpoint
from .journey import Journey, Obituary
from .setbacks import Setback

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
        self._dialect = dialect or dialect_named(config.dialect)
        self._endpoint = find_endpoint(config, self._dialect)
        self._channel = Channel(self._endpoint, self._dialect, config, sleep)
        self.images = ImageStore() if images is None else images
        """Where the bytes of the images in calls are read from; whoever makes calls puts them there."""
        self._owns_images = images is None
        self._obituary = obituary
        self._sleep = sleep
        self._dice = dice or random.Random()

    @property
    def stats(self) -> RelayStats:
        """A snapshot of the counters."""
        return self._channel.snapshot()

    async def complete(self, call: ModelCall) -> ModelReply:
        return await self._complete(call, self._config.max_retries)

    async def stream(self, call: ModelCall) -> AsyncGenerator[Event, None]:
        """Close the generator early (`contextlib.aclosing`) to drop the connection and so the work at the engine."""
        call, body = self._write(call, stream=True)
        journey = self._begin(self._config.max_retries)
        delivered = False
        while True:
            try:
                async with aclosing(self._channel.attempt_stream(call, body, journey)) as events:
                    async for event in events:
                        delivered = True
                        yield event
                return
            except Setback as setback:
                if delivered:
                    self._channel.stats.failures += 1
                    text = self._obituary() or f"{self._endpoint.name} {setback.reason} within a stream"
                    raise EngineUnavailable(text) from setback
                await self._pause(journey, setback)
            except EngineError:
                self._channel.stats.failures += 1
                raise

    async def probe(self) -> None:
        """One small call that is sent again once at most: a wrong address, key or model is known in seconds."""
        # Fewer than 16 tokens are refused by some reasoning models.
        call = ModelCall(self.model, (user("Say ok."),), sampling=Sampling(max_tokens=16))
        try:
            async with asyncio.timeout(_PROBE_DEADLINE_S):
                await self._complete(call, _PROBE_RETRIES)
        except TimeoutError as error:
            text = f"{self._endpoint.name} did not answer a probe within {_PROBE_DEADLINE_S:.0f} s; check the base_url"
            raise EngineUnavailable(text) from error

    async def close(self) -> None:
        """Idempotent. Calls in flight end with EngineUnavailable."""
        await self._channel.close()
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

    async def _complete(self, call: ModelCall, max_retries: int) -> ModelReply:
        call, body = self._write(call, stream=False)
        journey = self._begin(max_retries)
        while True:
            try:
                return await self._channel.attempt(call, body, journey)
            except Setback as setback:
                await self._pause(journey, setback)
            except EngineError:
                self._channel.stats.failures += 1
                raise

    def _write(self, call: ModelCall, *, stream: bool) -> tuple[ModelCall, bytes]:
        foreign = call.dialect not in ("", self._dialect.name)
        if call.stream is not stream or not call.model or (foreign and call.extra):
            # Fields that another dialect does not know mean nothing in this one.
            extra = {} if foreign else call.extra
            call = msgspec.structs.replace(call, stream=stream, model=call.model or self.model, extra=extra)
        try:
            return call, self._dialect.write_request(call, self.images)
        except WireError as error:
            raise EngineRefused(f"the call cannot be written for {self._endpoint.name}: {error}") from error

    def _begin(self, max_retries: int) -> Journey:
        self._channel.stats.calls += 1
        return Journey(self._endpoint, self._config, max_retries)

    async def _pause(self, journey: Journey, setback: Setback) -> None:
        try:
            self._check_alive(setback)
            await self._sleep(journey.pause_after(setback, self._dice))
            # Asked again: a process that died a moment ago may not have been mourned before the pause.
            self._check_alive(setback)
        except EngineError:
            self._channel.stats.failures += 1
            raise
        self._channel.stats.retries += 1

    def _check_alive(self, setback: Setback) -> None:
        if text := self._obituary():
            raise EngineUnavailable(text) from setback
        if self._channel.closed:
            raise EngineUnavailable(f"the client of {self._endpoint.name} was closed") from setback
