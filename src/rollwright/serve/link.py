"""The client's line to a broker: hello and welcome, silence, and the broker's rebirth. It knows nothing of requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from rollwright.wire import WireError
from rollwright.wire.codec import Buffer

from .carrier import Carrier
from .protocol import VERSION, Bye, Envelope, Hello, Refusal, Refused, ServerLost, Tick, ToClient, Welcome
from .shelf import place
from .wiring import Address, connected

TICK_S = 0.5
TELL_BYTES = 64 * 2**20
"""Read or taken since the last tick, they are told at once."""
SILENCE_S = 2.0
"""A broker that says nothing for so long is away; it speaks twice a second."""


class Link:
    """`heard` gets every message that is not about the line; `reborn` is called when a broker answers that remembers
    nothing of us; `lost` when the line stayed dead for `patience_s`."""

    def __init__(
        self,
        address: Address,
        heard: Callable[[Any, Sequence[Buffer]], None],
        reborn: Callable[[], None],
        lost: Callable[[str], None],
        patience_s: float,
        budget_bytes: int = 0,
    ) -> None:
        self._address = address
        self._budget_bytes = budget_bytes
        self.place = place()
        """Where workers may lay large frames for us; empty once that was seen to fail."""
        self._heard, self._reborn, self._lost = heard, reborn, lost
        self._patience_s = patience_s
        self._context: Any = zmq.Context()
        self.welcome: Welcome | None = None
        self._changed = asyncio.Event()
        self.life = 0
        """Counted up whenever the broker has no memory of what it sent us."""
        self._read_bytes = self._taken_bytes = self._told_bytes = 0
        self._stranger = False
        self.refused = ""
        """Why we were turned away; empty while we are not."""
        self._spoke = time.monotonic()
        self._ticking: asyncio.Task[None] | None = None

    async def open(self) -> None:
        socket = connected(self._context, self._address.front, self._address)
        self._carrier = Carrier(socket, ToClient, self._on_message, self._puzzled)
        self._spoke = time.monotonic()
        self.hello()
        self._ticking = asyncio.create_task(self._tick(), name="link to the broker")

    async def close(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
            self._carrier.send(Bye())
            self._carrier.close(linger_ms=200)
        # Waits for the linger, in a thread: a loop must not.
        await asyncio.to_thread(self._context.term)

    def send(self, envelope: Envelope, frames: Sequence[Any] = ()) -> None:
        self._carrier.send(envelope, frames)

    @property
    def ready(self) -> bool:
        return self.welcome is not None and self.welcome.ready

    async def until_ready(self, timeout_s: float) -> None:
        """Wait until some worker has proven itself; ServerLost if none does in time, or if we are turned away."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.ready:
                    if self.refused:
                        raise ServerLost(f"the server turned us away: {self.refused}")
                    if self.welcome is not None and self.welcome.failing:
                        raise ServerLost(self.welcome.failing)
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            state = "no worker is ready" if self.welcome is not None else "nobody answers there"
            raise ServerLost(f"{state} after {timeout_s:g} s") from error

    def hello(self) -> None:
        self._carrier.send(Hello(VERSION, self._address.token, self.place, self._budget_bytes))

    def read(self, size: int) -> None:
        """Results of so many bytes have come."""
        self._read_bytes += size
        self._tell_in_time()

    def took(self, size: int, life: int) -> None:
        """Results of so many bytes, that came in this life of the line, are with the caller."""
        if life == self.life:
            self._taken_bytes += size
            self._tell_in_time()

    def _tell_in_time(self) -> None:
        """The broker bounds what we have not read, and what our caller has not taken."""
        untold = self._read_bytes + self._taken_bytes - self._told_bytes
        if untold > min(TELL_BYTES, self._budget_bytes // 4 or TELL_BYTES):
            self._tick_once()

    def _puzzled(self, error: WireError) -> None:
        self._lost(f"the broker does not speak our language: {error}")

    def _on_message(self, said: Any, frames: Sequence[Buffer]) -> None:
        self._spoke = time.monotonic()
        if isinstance(said, Welcome):
            self._welcomed(said)
        elif isinstance(said, Refused):
            self._refused(said)
        elif not isinstance(said, Tick):
            self._heard(said, frames)

    def _refused(self, said: Refused) -> None:
        if said.kind is Refusal.STRANGER:
            # It was born again, or has given us up; either way it knows of nothing that we asked for.
            self._stranger = True
            self.hello()
        else:
            self.refused = said.reason
            self._changed.set()

    def _tick_once(self) -> None:
        self._told_bytes = self._read_bytes + self._taken_bytes
        self._carrier.send(Tick(self._read_bytes, self._taken_bytes))

    def _welcomed(self, said: Welcome) -> None:
        before, self.welcome = self.welcome, said
        self.refused = ""
        self._changed.set()
        stranger, self._stranger = self._stranger, False
        if before is not None and (stranger or before.broker != said.broker):
            self._read_bytes = self._taken_bytes = self._told_bytes = 0
            self.life += 1
            self._reborn()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            silent_s = time.monotonic() - self._spoke
            if silent_s > SILENCE_S + self._patience_s:
                self._lost(f"the broker has been silent for {silent_s:.1f} s")
            # A broker that was born again in less time than we call silence does not know us.
            if silent_s > SILENCE_S or self.welcome is None or self.refused:
                self.hello()
            else:
                self._tick_once()
