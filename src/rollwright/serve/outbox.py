"""What a worker answers, on its way out. Large frames go by way of the shelf where the client can look into it.

Laying a message on the shelf copies it, so it is done in a thread. Whatever is said meanwhile waits behind it: answers
leave in the order in which they were given.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from rollwright.wire.codec import Buffer

from .carrier import Carrier
from .protocol import Done, Failed, Laid, Part
from .shelf import LEAST_BYTES, Shelf

log = logging.getLogger("rollwright.serve.worker")

IDLE_S = 5.0
"""How often a shelf is looked at; one where nothing lies then gives its memory back."""
FETCH_S = 5.0

Answer = Part | Done | Failed


class Outbox:
    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._loop = asyncio.get_running_loop()
        # Bounded by what the worker runs at once: each rollout answers once.
        self._waiting: deque[tuple[Answer, Sequence[Buffer], bool]] = deque()
        self._busy: asyncio.Future[Any] | None = None
        self._shelf: Shelf | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._shelves_exist = True
        self._tidying: asyncio.TimerHandle | None = None

    def send(self, answer: Answer, frames: Sequence[Buffer] = (), *, near: bool = False) -> None:
        """`near` if the client can look into our shelf. Memory of the frames must not change until they were sent."""
        self._waiting.append((answer, frames, near))
        if self._busy is None:
            self._next()

    def vitals(self) -> dict[str, float]:
        shelf = self._shelf
        if shelf is None:
            return {}
        held = {"shelf_bytes": float(shelf.held_bytes), "shelf_budget_bytes": float(shelf.size)}
        return {**held, "shelf_mb": shelf.resident_mb}

    async def close(self) -> None:
        """Send what waits, over the socket. What lies on the shelf goes with us, so its clients are given a moment to
        fetch it; whoever does not has to ask for it again."""
        self._shelves_exist = False
        while self._busy is not None:
            await asyncio.wait({self._busy})
        self._next()
        if self._shelf is not None:
            await self._until_fetched(self._shelf)
        if self._tidying is not None:
            self._tidying.cancel()
        if self._thread is not None:
            self._thread.shutdown(wait=False)
        if self._shelf is not None:
            self._shelf.close()

    async def _until_fetched(self, shelf: Shelf) -> None:
        until = self._loop.time() + FETCH_S
        while not shelf.empty and self._loop.time() < until:
            # Clients say so in the shelf itself, which nobody can wait for.
            await asyncio.sleep(0.01)
            shelf.sweep(self._loop.time())

    def _next(self) -> None:
        """Send everything up to the next that is laid."""
        while self._waiting and self._busy is None:
            answer, frames, near = self._waiting.popleft()
            laid = self._place_for(frames) if near and not isinstance(answer, Failed) else None
            if laid is None:
                self._carrier.send(answer, frames)
            else:
                self._lay(msgspec.structs.replace(answer, laid=laid), frames, laid)

    def _place_for(self, frames: Sequence[Buffer]) -> Laid | None:
        if not any(len(frame) >= LEAST_BYTES for frame in frames):
            return None
        shelf = self._opened()
        return shelf.reserve(frames, self._loop.time()) if shelf is not None else None

    def _lay(self, answer: Answer, frames: Sequence[Buffer], laid: Laid) -> None:
        assert self._shelf is not None
        self._busy = laying = self._loop.run_in_executor(self._thread, self._shelf.lay, laid, frames)
        laying.add_done_callback(lambda done: self._laid(answer, done))
        if self._tidying is None:
            self._tidying = self._loop.call_later(IDLE_S, self._tidy)

    def _laid(self, answer: Answer, done: asyncio.Future[list[Buffer]]) -> None:
        self._busy = None
        self._carrier.send(answer, done.result())
        self._next()

    def _opened(self) -> Shelf | None:
        if not self._shelves_exist:
            return None
        if self._shelf is None:
            try:
                self._shelf = Shelf()
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollwright-shelf")
            except (OSError, AttributeError) as error:
                self._shelves_exist = False
                log.warning("large results go over the socket: this system gives no memory to share: %s", error)
        return self._shelf

    def _tidy(self) -> None:
        self._tidying = None
        assert self._shelf is not None
        if self._shelf.may_give_back(self._loop.time()):
            # What is to be laid meanwhile goes over the socket.
            giving = self._loop.run_in_executor(self._thread, self._shelf.give_back)
            giving.add_done_callback(lambda _: self._gave_back())
        else:
            self._tidying = self._loop.call_later(IDLE_S, self._tidy)

    def _gave_back(self) -> None:
        assert self._shelf is not None
        self._shelf.gave_back()
