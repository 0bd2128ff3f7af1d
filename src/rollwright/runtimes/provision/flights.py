"""One piece of work for all who ask for it at the same time. It caches nothing: who comes later asks anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Flight(Generic[T]):
    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.passengers = 0


class Flights(Generic[T]):
    """Keyed by name and by event loop. Work goes on while anybody waits for it, and is cancelled when nobody does."""

    def __init__(self) -> None:
        self._flying: dict[tuple[asyncio.AbstractEventLoop, str], _Flight[T]] = {}

    def __repr__(self) -> str:
        return f"<Flights {len(self._flying)} flying>"

    async def join(self, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the work that flies under `key`, begun by the first who asks."""
        name = (asyncio.get_running_loop(), key)
        flight = self._flying.get(name)
        if flight is None:
            flight = self._flying[name] = _Flight(asyncio.create_task(work(), name=f"flight {key}"))
        flight.passengers += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.passengers -= 1
            if not flight.passengers:
                self._flying.pop(name, None)
                await self._land(flight.task)

    async def _land(self, task: asyncio.Task[T]) -> None:
        """The last one out sees the work end, so that no task outlives all of its parents."""
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
