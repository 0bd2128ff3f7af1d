"""The scripted engine on a loopback port. It carries bytes; what is said and what goes wrong is decided in `player`.

Besides the paths of the dialects, and those of token ids where a tokenizer is set, it serves /v1/models, /health,
/metrics, POST /policy, which sets the version that it claims to sample by, and for tests /scripted/log, /scripted/stats
and POST /scripted/reset. A client that leaves cancels its call.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import time
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web

from rollwright.dialects import DIALECTS, Dialect, Hashes, write_models
from rollwright.renderers.contract import Renderer
from rollwright.wire import EngineError, EngineRefused, ModelCall, ModelReply, UsageError, WireError

from .config import Fault, ScriptedConfig
from .ids import IdDialect, id_dialects, write_id_models
from .log import CallLog, Stats, write_log
from .player import Arrival, Player
from .policies import Policy, make_policy
from .stream import frames, spoiled
from .voice import make_voice

_BY_PATH: dict[str, Dialect] = {dialect.path: dialect for dialect in DIALECTS.values()}
_CHAT = DIALECTS["chat"]
AnyDialect = Dialect | IdDialect
# Handlers are cancelled when the server closes; this is how long they may take to notice.
_CLOSE_S = 0.05
_JSON = {"Content-Type": "application/json"}


class _Policy(msgspec.Struct, frozen=True):
    version: int
    path: str = ""


class ScriptedServer:
    """`async with ScriptedServer(config) as server: server.base_url`. A policy or a renderer given here wins over those
    of the settings."""

    def __init__(
        self, config: ScriptedConfig | None = None, policy: Policy | None = None, renderer: Renderer | None = None
    ) -> None:
        self.config = config or ScriptedConfig()
        voice = make_voice(self.config, renderer)
        self._player = Player(self.config, policy or make_policy(self.config), voice)
        self._ids = id_dialects(self.config, voice) if voice is not None else {}
        self._key = _expected_key(self.config)
        self._images = Hashes()
        self._max_body = int(self.config.max_body_mb * 2**20)
        self._runner: web.ServerRunner | None = None
        self.port = 0

    def __repr__(self) -> str:
        stats = self.stats
        return f"<ScriptedServer {self.base_url}: {stats.in_flight} in flight, {stats.served} served>"

    @property
    def base_url(self) -> str:
        """The root of the host; OpenAI's SDK wants /v1 behind it."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> list[CallLog]:
        """The newest calls, oldest first."""
        return self._player.log

    @property
    def stats(self) -> Stats:
        return self._player.snapshot(time.process_time())

    def reset(self) -> None:
        """Forget all that was asked and said."""
        self._player.reset()

    async def __aenter__(self) -> Self:
        server = web.Server(self._serve, request_factory=self._make_request, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=_CLOSE_S)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, backlog=1024)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _make_request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        return web.BaseRequest(
            message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=self._max_body
        )

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        stats = self._player.stats
        stats.in_flight += 1
        try:
            return await self._dispatch(request)
        except asyncio.CancelledError:
            stats.cancelled += 1
            raise
        finally:
            self._player.stats.in_flight -= 1

    async def _dispatch(self, request: web.BaseRequest) -> web.StreamResponse:
        dialect = self._ids.get(request.path) or _BY_PATH.get(request.path)
        if request.path == "/health":
            return _json({"status": "ok"})
        if self._key and not hmac.compare_digest(
            (dialect or _CHAT).read_key(request.headers).encode(), self._key.encode()
        ):
            return self._refuse(dialect or _CHAT, 401, "the API key is wrong")
        if (request.method, request.path) == ("POST", "/policy"):
            return await self._take_policy(request)
        if dialect is None:
            return self._aside(request)
        if request.method != "POST":
            return self._refuse(dialect, 405, f"{request.path} takes POST, not {request.method}")
        return await self._call(request, dialect)

    async def _call(self, request: web.BaseRequest, dialect: AnyDialect) -> web.StreamResponse:
        try:
            call = dialect.read_request(await request.read(), self._images)
        except web.HTTPRequestEntityTooLarge:
            return self._refuse(dialect, 413, f"the body is over the limit of {self.config.max_body_mb:g} MiB")
        except WireError as error:
            return self._refuse(dialect, 400, str(error))
        if self.config.models and call.model not in self.config.models:
            known = ", ".join(self.config.models)
            return self._refuse(dialect, 404, f"model '{call.model}' is not served here; there is {known}")
        return await self._answer(request, dialect, self._player.arrive(call, dialect.name))

    async def _answer(self, request: web.BaseRequest, dialect: AnyDialect, arrival: Arrival) -> web.StreamResponse:
        if arrival.fault is Fault.RATE_LIMIT:
            self._player.skip(arrival)
            wait = {"Retry-After": f"{self.config.retry_after_s:g}"}
            return _error(dialect, 429, "too many requests, as the script says", wait)
        if arrival.fault is Fault.SERVER_ERROR:
            self._player.skip(arrival)
            return _error(dialect, 500, "the engine broke, as the script says")
        try:
            written = self._written(dialect, arrival.call, await self._player.answer(arrival))
        except EngineRefused as error:
            return self._refuse(dialect, 400, str(error))
        except (EngineError, WireError) as error:
            self._player.stats.broken += 1
            return _error(dialect, 500, str(error))
        if arrival.call.stream:
            return await self._stream(request, arrival, written)
        return await self._whole(request, arrival, written[0])

    def _written(self, dialect: AnyDialect, call: ModelCall, reply: ModelReply) -> list[bytes]:
        """All bytes of an answer before the first is sent, so that what cannot be written is a clean error."""
        if isinstance(dialect, IdDialect):
            return dialect.frames(reply, call)
        if call.stream:
            return frames(dialect, call, reply, self.config.chunk_chars)
        return [dialect.write_reply(reply, call)]

    async def _whole(self, request: web.BaseRequest, arrival: Arrival, body: bytes) -> web.StreamResponse:
        if arrival.fault is Fault.STALL:
            return await self._stall(request, web.Response())
        if pause := arrival.latency_s + self.config.first_token_s:
            await asyncio.sleep(pause)
        if arrival.fault is Fault.MALFORMED_JSON:
            return _bytes(body[: len(body) // 2])
        if arrival.fault is Fault.CUT_STREAM:
            response = web.StreamResponse(headers={**_JSON, "Content-Length": str(len(body))})
            await response.prepare(request)
            await response.write(body[: len(body) // 2])
            return _hung_up(request, response)
        self._player.stats.served += 1
        return _bytes(body)

    async def _stream(self, request: web.BaseRequest, arrival: Arrival, whole: list[bytes]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        if self.config.first_token_s:
            await asyncio.sleep(self.config.first_token_s)
        for frame in spoiled(whole, arrival.fault):
            await response.write(frame)
            if arrival.latency_s:
                await asyncio.sleep(arrival.latency_s / len(whole))
        if arrival.fault is Fault.STALL:
            return await self._stall(request, response)
        if arrival.fault is Fault.CUT_STREAM:
            return _hung_up(request, response)
        self._player.stats.served += arrival.fault is Fault.NONE
        return response

    async def _stall(self, request: web.BaseRequest, response: web.StreamResponse) -> web.StreamResponse:
        await asyncio.sleep(self.config.stall_s)
        return _hung_up(request, response)

    def _refuse(self, dialect: AnyDialect, status: int, message: str) -> web.Response:
        self._player.stats.refused += 1
        return _error(dialect, status, message)

    async def _take_policy(self, request: web.BaseRequest) -> web.Response:
        try:
            policy = msgspec.json.decode(await request.read(), type=_Policy)
        except msgspec.DecodeError as error:
            return self._refuse(_CHAT, 400, f"not a policy version: {error}")
        self._player.policy_version = policy.version
        return _json({"version": policy.version})

    def _aside(self, request: web.BaseRequest) -> web.Response:
        """The paths that are no model calls."""
        place = (request.method, request.path)
        if place == ("GET", "/v1/models"):
            names = self.config.models or ("scripted",)
            return _bytes(write_id_models(names, self.config) if self._ids else write_models(names))
        if place == ("GET", "/metrics"):
            # This request is in flight as well, and nobody ever waits.
            load = f"rollwright:running {self._player.stats.in_flight - 1}\nrollwright:waiting 0\n"
            return web.Response(text=load)
        if place == ("GET", "/scripted/log"):
            return _bytes(write_log(self.log))
        if place == ("GET", "/scripted/stats"):
            return _json(self.stats)
        if place == ("POST", "/scripted/reset"):
            self.reset()
            return _json({})
        return self._refuse(_CHAT, 404, f"there is nothing at {request.method} {request.path}")


def _expected_key(config: ScriptedConfig) -> str:
    if not config.key_env:
        return ""
    key = os.environ.get(config.key_env, "")
    if not key:
        raise UsageError(f"engine.scripted.key_env names {config.key_env}, which is not set; set it or leave it out")
    return key


def _hung_up(request: web.BaseRequest, response: web.StreamResponse) -> web.StreamResponse:
    """Close the connection in the middle of the answer. What was written before still arrives."""
    if request.transport is not None:
        request.transport.close()
    return response


def _error(dialect: AnyDialect, status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = dialect.write_error(status, message)
    return web.Response(body=body, status=status, headers={**_JSON, **(headers or {})})


def _json(value: Any) -> web.Response:
    return _bytes(msgspec.json.encode(value))


def _bytes(body: bytes) -> web.Response:
    return web.Response(body=body, headers=_JSON)
