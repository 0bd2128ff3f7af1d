"""Request bodies, read within bounds: each has a size and a deadline, and all of them together a budget of bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from aiohttp import web

from .config import InterceptConfig
from .rejection import FINAL, Rejected

_UNDECLARED_STEP = 2**18
"""Reserved at a time for a body that does not say how long it is."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ByteBudget:
    """Bytes that may be held at once. First come, first served."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __repr__(self) -> str:
        waiting = sum(not turn.done() for _, turn in self._waiting)
        return f"<ByteBudget {self.held} of {self.total} held, {waiting} waiting>"

    async def take(self, amount: int, within_s: float) -> None:
        """Wait until `amount` is free; TimeoutError when it takes too long. More than there is counts as all."""
        amount = min(amount, self.total)
        if not self._waiting and self.held + amount <= self.total:
            self.held += amount
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((amount, turn))
        try:
            async with asyncio.timeout(within_s):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.held -= amount  # It was granted in the same turn of the loop in which its taker left.
            else:
                turn.cancel()
            self._admit()
            raise

    def give_back(self, amount: int) -> None:
        self.held -= min(amount, self.total)
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            amount, turn = self._waiting[0]
            if not turn.cancelled():
                if self.held + amount > self.total:
                    return
                self.held += amount
                turn.set_result(None)
            self._waiting.popleft()


class Bodies:
    """Reads the bodies of one server."""

    def __init__(self, config: InterceptConfig) -> None:
        self._config = config
        self.budget = ByteBudget(config.max_bytes_in_flight)

    async def read(self, request: web.BaseRequest) -> bytes:
        """The whole body. Rejected if it is too long, too slow, or there is no room for it."""
        pieces: list[bytes] = []
        await self.feed(request, pieces.append)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def feed(self, request: web.BaseRequest, take: Callable[[bytes], object]) -> None:
        """The pieces of the body as they come."""
        declared = request.content_length
        if declared is not None and declared > self._config.max_body_bytes:
            raise self._too_long()
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Rejected(415, "compressed bodies are not read here", headers=FINAL, close=True)
        content = request.content
        if content.is_eof():
            # It came together with the headers: it is held already, so there is nothing to reserve or to wait for.
            body = content.read_nowait()
            if len(body) > self._config.max_body_bytes:
                raise self._too_long()
            take(body)
        else:
            await self._feed_within(request, declared, take)

    async def _feed_within(
        self, request: web.BaseRequest, declared: int | None, take: Callable[[bytes], object]
    ) -> None:
        reserved = size = 0
        try:
            async with asyncio.timeout(self._config.body_timeout_s):
                reserved = await self._reserve(declared or _UNDECLARED_STEP)
                if request.headers.get("expect", "").lower() == "100-continue" and request.transport is not None:
                    request.transport.write(_CONTINUE)
                while piece := await request.content.readany():
                    size += len(piece)
                    if size > self._config.max_body_bytes:
                        raise self._too_long()
                    if size > reserved:
                        reserved += await self._reserve(max(_UNDECLARED_STEP, size - reserved))
                    take(piece)
        except TimeoutError as error:
            text = f"the body did not arrive within {self._config.body_timeout_s:g} s"
            raise Rejected(408, text, close=True) from error
        finally:
            self.budget.give_back(reserved)

    async def _reserve(self, amount: int) -> int:
        try:
            await self.budget.take(amount, self._config.budget_timeout_s)
        except TimeoutError as error:
            text = "too many bytes of requests are being read at once; ask again"
            raise Rejected(503, text, "overloaded_error", headers={"Retry-After": "1"}, close=True) from error
        return amount

    def _too_long(self) -> Rejected:
        text = f"the body is over the limit of {self._config.max_body_bytes} bytes"
        return Rejected(413, text, close=True)
