"""When a page has arrived where an action led it. The driver tells when a page was loaded, not that it will be left."""

from __future__ import annotations

import asyncio
from typing import Any

_MOMENT_S = 0.1
"""A page tells nobody that it is about to go elsewhere, so it gets this long to begin."""


class Journeys:
    """Pages of one context that are under way."""

    def __init__(self, context: Any, within_s: float) -> None:
        self._within_s = within_s
        self._under_way: set[Any] = set()
        self._arrived = asyncio.Event()
        context.on("request", self._begin)
        context.on("requestfinished", self._end)
        context.on("requestfailed", self._end)

    async def over(self, page: Any) -> None:
        """Wait until `page` stays where it is. One that never does is looked at as it is."""
        await asyncio.sleep(_MOMENT_S)
        try:
            async with asyncio.timeout(self._within_s):
                while self._under_way:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            self._under_way.clear()
        await page.wait_for_load_state("load", timeout=self._within_s * 1000)

    def _begin(self, request: Any) -> None:
        if request.is_navigation_request():
            self._under_way.add(request)

    def _end(self, request: Any) -> None:
        self._under_way.discard(request)
        self._arrived.set()
