"""One attempt at a time over one bounded pool of connections: wait for a slot, keep to the rate, send, read.

Every failure leaves here as a Setback (another attempt may help) or as an EngineError (it will not). Cookies are off,
redirects are not followed, and a proxy is used only where the environment names one for a host other than this machine.
Nothing here retries.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import msgspec

from rollwright.dialects import StreamReader
from rollwright.wire import End, EngineRefused, EngineUnavailable, ModelCall, ModelReply, Usage

from .config import RelayConfig
from .contract import Ear
from .endpoint import ClientSide, Endpoint
from .inflow import Conduits, Inflow, TooLong
from .journey import Journey
from .limiter import Limiter
from .pacing import Bucket
from .setbacks import Setback, refuse_or_retry, translated, understood

Sleep = Callable[[float], Awaitable[object]]

_MAX_ERROR_BYTES = 64 * 1024
_KEEPALIVE_S = 30.0
# After the last event the peer ends the response; whoever is slower than this loses the connection, not the answer.
_TAIL_S = 1.0
# The HTTP library warns about longer bodies in one piece, because writing them in one go holds the loop.
_ONE_PIECE_BYTES = 2**20
_BYTES_PER_TOKEN = 4


class RelayStats(msgspec.Struct):
    """Counters since the engine was made."""

    calls: int = 0
    """Calls that were begun."""
    attempts: int = 0
    """Requests that were sent."""
    retries: int = 0
    rate_limited: int = 0
    """Answers with status 429."""
    failures: int = 0
    """Calls that ended in an error."""
    in_flight: int = 0
    waiting: int = 0
    """Calls that wait for a slot."""
    limit: int = 0
    """How many calls the adaptive limit lets through now."""
    bytes_sent: int = 0
    bytes_received: int = 0


class Visit:
    """One attempt while it holds a slot."""

    __slots__ = ("tokens", "usage")

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        """Guessed from the request, for the token rate."""
        self.usage: Usage | None = None
        """What the endpoint says it was."""


class Channel:
    """The connections to one endpoint, and the limits on their use."""

    def __init__(self, endpoint: Endpoint, dialect: ClientSide, config: RelayConfig, sleep: Sleep) -> None:
        self.endpoint = endpoint
        self.dialect = dialect
        self.limiter = Limiter(min(config.max_concurrency or config.max_connections, config.max_connections))
        self.stats = RelayStats()
        self.closed = False
        self._config = config
        self._sleep = sleep
        now = time.monotonic()
        self._requests = Bucket(config.requests_per_minute, now) if config.requests_per_minute else None
        self._tokens = Bucket(config.tokens_per_minute, now) if config.tokens_per_minute else None
        self._session: aiohttp.ClientSession | None = None

    async def attempt(self, call: ModelCall, body: bytes, journey: Journey) -> ModelReply:
        async with self._admitted(call, body, journey) as visit:
            with translated(self.endpoint):
                async with asyncio.timeout(journey.attempt_s), self._post(body) as response:
                    await self._check_status(call, response)
                    answer = await self._read(response, self._config.max_reply_bytes)
            with understood(self.endpoint):
                reply = self.dialect.read_reply(answer)
            visit.usage = reply.usage
        return msgspec.structs.replace(reply, queue_s=journey.queued_s)

    async def attempt_stream(
        self, call: ModelCall, body: bytes, journey: Journey, reader: StreamReader, ear: Ear
    ) -> End:
        async with self._admitted(call, body, journey) as visit:
            with translated(self.endpoint):
                async with self._opened(call, body, journey) as response:
                    end = await self._told(response, journey, reader, ear)
                    await _read_tail(response)
            visit.usage = end.usage
        return msgspec.structs.replace(end, queue_s=journey.queued_s)

    async def close(self) -> None:
        self.closed = True
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    def snapshot(self) -> RelayStats:
        gate = self.limiter.gate
        counts = {"in_flight": len(gate.in_flight), "waiting": len(gate.waiting), "limit": int(gate.limit)}
        return msgspec.structs.replace(self.stats, **counts)

    # The slot and the rate.

    @asynccontextmanager
    async def _admitted(self, call: ModelCall, body: bytes, journey: Journey) -> AsyncIterator[Visit]:
        asked_at = time.monotonic()
        try:
            ticket = await self.limiter.acquire(self._config.queue_timeout_s)
        except TimeoutError as error:
            text = f"no slot for {self.endpoint.name} came free within {self._config.queue_timeout_s:.0f} s"
            raise EngineUnavailable(f"{text}; lower the concurrency or raise queue_timeout_s") from error
        visit = Visit(len(body) // _BYTES_PER_TOKEN + (call.sampling.max_tokens or 0))
        try:
            await self._keep_pace(visit)
            sent_at = time.monotonic()
            journey.queued_s += sent_at - asked_at
            journey.begin(sent_at)
            yield visit
            self.limiter.went_well(ticket)
            self._settle(visit)
        except Setback as setback:
            if setback.overloaded:
                self.limiter.overloaded(ticket)
            if self._tokens is not None:
                self._tokens.give_back(visit.tokens, time.monotonic())
            raise
        finally:
            journey.end(time.monotonic())
            self.limiter.release(ticket)

    async def _keep_pace(self, visit: Visit) -> None:
        if self._requests is None and self._tokens is None:
            return
        now = time.monotonic()
        takes = [(bucket, amount) for bucket, amount in ((self._requests, 1), (self._tokens, visit.tokens)) if bucket]
        wait_s = max(bucket.take(amount, now) for bucket, amount in takes)
        try:
            if wait_s > self._config.queue_timeout_s:
                text = f"the rate limit set for {self.endpoint.name} would let this call go in {wait_s:.0f} s"
                raise EngineUnavailable(f"{text}; lower the concurrency or raise queue_timeout_s")
            if wait_s > 0:
                await self._sleep(wait_s)
        except BaseException:
            for bucket, amount in takes:
                bucket.give_back(amount, time.monotonic())
            raise

    def _settle(self, visit: Visit) -> None:
        """Correct the guess by what the endpoint counted, where it counts."""
        if self._tokens is not None and visit.usage is not None and visit.usage.total_tokens:
            self._tokens.give_back(visit.tokens - visit.usage.total_tokens, time.monotonic())

    # The exchange.

    def _post(self, body: bytes) -> aiohttp.client._RequestContextManager:
        self.stats.attempts += 1
        self.stats.bytes_sent += len(body)
        endpoint = self.endpoint
        return self._open_session().post(
            endpoint.url,
            data=body if len(body) < _ONE_PIECE_BYTES else io.BytesIO(body),
            allow_redirects=False,
            proxy=endpoint.proxy,
            proxy_headers=endpoint.proxy_headers,
        )

    def _open_session(self) -> aiohttp.ClientSession:
        if self.closed:
            raise EngineUnavailable(f"the client of {self.endpoint.name} was closed")
        if self._session is None:
            connector = Conduits(limit=self._config.max_connections, keepalive_timeout=_KEEPALIVE_S)
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers=self.endpoint.headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                # Deadlines are set around each attempt; only opening a connection has one of its own.
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._config.connect_timeout_s),
            )
        return self._session

    @asynccontextmanager
    async def _opened(self, call: ModelCall, body: bytes, journey: Journey) -> AsyncIterator[aiohttp.ClientResponse]:
        """The deadline covers the way to the first headers and not what is done with the response."""
        request = self._post(body)
        async with asyncio.timeout(journey.attempt_s):
            response = await request
        try:
            async with asyncio.timeout(journey.attempt_s):
                await self._check_status(call, response)
            yield response
        finally:
            # Closes the connection unless the response was read to its end.
            response.release()

    async def _told(self, response: aiohttp.ClientResponse, journey: Journey, reader: StreamReader, ear: Ear) -> End:
        inflow = Inflow(response, reader, ear, self._config.max_reply_bytes)
        try:
            with understood(self.endpoint):
                left_s = journey.left_now_s(time.monotonic())
                return await inflow.run(journey.attempt_s, self._config.stall_timeout_s, left_s)
        except TooLong as error:
            raise self._too_long() from error
        finally:
            journey.heard = journey.heard or inflow.told
            self.stats.bytes_received += inflow.received_bytes

    async def _check_status(self, call: ModelCall, response: aiohttp.ClientResponse) -> None:
        if response.status == 200:
            return
        self.stats.rate_limited += response.status == 429
        body = await response.content.read(_MAX_ERROR_BYTES)
        raise refuse_or_retry(self.endpoint, self.dialect, response, body, model=call.model)

    async def _read(self, response: aiohttp.ClientResponse, limit: int) -> bytes:
        chunks, size = [], 0
        while chunk := await response.content.readany():
            size += len(chunk)
            if size > limit:
                raise self._too_long()
            chunks.append(chunk)
        self.stats.bytes_received += size
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _too_long(self) -> EngineRefused:
        limit = self._config.max_reply_bytes
        return EngineRefused(
            f"{self.endpoint.name} sent more than {limit} bytes; raise max_reply_bytes if that is right"
        )


async def _read_tail(response: aiohttp.ClientResponse) -> None:
    """Read to the end of the response, so that its connection can serve the next call."""
    if response.content.is_eof():
        return
    try:
        async with asyncio.timeout(_TAIL_S):
            while await response.content.readany():
                pass
    except (aiohttp.ClientError, TimeoutError, OSError):
        response.close()
