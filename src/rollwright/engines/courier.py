"""One call over HTTP until it is answered or given up: attempts, pauses, the last word.

A stream is sent again until its first event was handed out and never after: what was delivered cannot be taken back.
What is in a body, and what its answer means, is the caller's business.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import cast

from rollwright.dialects import StreamReader
from rollwright.wire import End, EngineError, EngineUnavailable, ModelCall, ModelReply

from .channel import Channel, RelayStats, Sleep
from .config import RelayConfig
from .contract import Ear
from .endpoint import ClientSide, Endpoint
from .inflow import Deaf
from .journey import Journey, Obituary
from .setbacks import Setback


class Courier:
    """Carries calls to one endpoint and sends again what may pass."""

    def __init__(
        self,
        endpoint: Endpoint,
        dialect: ClientSide,
        config: RelayConfig,
        *,
        obituary: Obituary = lambda: None,
        sleep: Sleep = asyncio.sleep,
        dice: random.Random | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._config = config
        self._channel = Channel(endpoint, dialect, config, sleep)
        self._obituary = obituary
        self._sleep = sleep
        self._dice = dice or random.Random()

    @property
    def stats(self) -> RelayStats:
        """A snapshot of the counters."""
        return self._channel.snapshot()

    async def complete(self, call: ModelCall, body: bytes, max_retries: int | None = None) -> ModelReply:
        journey = self._begin(max_retries)
        while True:
            try:
                return await self._channel.attempt(call, body, journey)
            except Setback as setback:
                await self._pause(journey, setback)
            except EngineError:
                self._channel.stats.failures += 1
                raise

    async def stream(self, call: ModelCall, body: bytes, make_reader: Callable[[], StreamReader], ear: Ear) -> End:
        """`make_reader` makes the reader of one attempt."""
        journey = self._begin(None)
        while True:
            try:
                return await self._channel.attempt_stream(call, body, journey, make_reader(), ear)
            except Deaf as deaf:
                # What the listener raised was about itself, so it hears it as it was.
                raise cast(Exception, deaf.__cause__) from None
            except Setback as setback:
                if journey.heard:
                    self._channel.stats.failures += 1
                    text = self._obituary() or f"{self.endpoint.name} {setback.reason} within a stream"
                    raise EngineUnavailable(text) from setback
                await self._pause(journey, setback)
            except EngineError:
                self._channel.stats.failures += 1
                raise

    async def close(self) -> None:
        """Idempotent. Calls in flight end with EngineUnavailable."""
        await self._channel.close()

    def _begin(self, max_retries: int | None) -> Journey:
        self._channel.stats.calls += 1
        return Journey(self.endpoint, self._config, self._config.max_retries if max_retries is None else max_retries)

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
            raise EngineUnavailable(f"the client of {self.endpoint.name} was closed") from setback
