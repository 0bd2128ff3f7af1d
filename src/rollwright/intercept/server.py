"""The interceptor: one port for the model calls of many rollouts.

A program is handed an address and a key and believes that it talks to its provider. The key says which rollout it
belongs to; the path says which dialect it speaks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

from aiohttp import web

from rollwright.dialects import DIALECTS, Dialect, write_model, write_models
from rollwright.harnesses import Door, Session
from rollwright.tasks import Toolbox

from .admission import Admission, StateRoute
from .bodies import Bodies
from .carrying import OVER, Carrier
from .config import InterceptConfig
from .connection import Asked, Switchboard
from .counting import count_tokens
from .delivery import Answer
from .keys import key_in
from .rejection import FINAL, Rejected
from .statebook import STATE_PATH, serve_state
from .toolbench import TOOLS_PATH, Toolbench

_CLOSE_S = 0.05
_CHAT, _MESSAGES = DIALECTS["chat"], DIALECTS["messages"]
# Clients differ in whether their base URL ends with /v1.
_BY_PATH: dict[str, Dialect] = {
    path: dialect for dialect in DIALECTS.values() for path in (dialect.path, dialect.path.removeprefix("/v1"))
}
_COUNT_PATHS = ("/v1/messages/count_tokens", "/messages/count_tokens")
_MODEL_PATHS = ("/v1/models", "/models")


class Interceptor:
    """`async with Interceptor() as interceptor, interceptor.admit(session) as door: ...`"""

    def __init__(self, config: InterceptConfig | None = None) -> None:
        self.config = config or InterceptConfig()
        self.port = 0
        self._bodies = Bodies(self.config)
        self._carrier = Carrier(self.config, self._bodies)
        self._by_key: dict[str, Admission] = {}
        self._by_state_key: dict[str, Admission] = {}
        self._by_tools_key: dict[str, Admission] = {}
        self._runner: web.ServerRunner | None = None

    def __repr__(self) -> str:
        calls = sum(len(admission.running) for admission in self._by_key.values())
        held = self._bodies.budget.held
        return f"<Interceptor {self.url}: {len(self._by_key)} rollouts, {calls} calls, {held} bytes>"

    @property
    def held_bytes(self) -> int:
        """Of request bodies that are here now, of the `config`'s budget."""
        return self._bodies.budget.held

    @property
    def url(self) -> str:
        """The root of the host as this machine sees it."""
        return f"http://{self.config.host}:{self.port}"

    async def __aenter__(self) -> Self:
        server = Switchboard(self._serve, self.config.max_connections, self.config.idle_timeout_s)
        self._runner = web.ServerRunner(server, shutdown_timeout=_CLOSE_S)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.config.host, self.config.port, backlog=1024)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        await asyncio.gather(*(self._dismiss(admission) for admission in list(self._by_key.values())))
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @asynccontextmanager
    async def admit(
        self,
        session: Session,
        *,
        url: str = "",
        state: dict[str, Any] | None = None,
        routes: Mapping[str, StateRoute] | None = None,
        tools: Toolbox | None = None,
    ) -> AsyncIterator[Door]:
        """Let the programs of one rollout in until the block ends; then its secrets open nothing and no call of it is
        open. `url` is the address as they see it; `routes` are paths that the state key opens besides the state;
        `tools`, if there are any, are served by MCP."""
        opens = dict(routes or {})
        if tools is not None and tools.specs:
            opens[TOOLS_PATH] = Toolbench(tools, session, self._bodies).serve
        admission = Admission(session, {} if state is None else state, opens, self.config.kept_answers)
        self._by_key[admission.key] = admission
        self._by_state_key[admission.state_key] = admission
        self._by_tools_key[admission.tools_key] = admission
        try:
            yield self._door(admission, (url or self.url).rstrip("/"))
        finally:
            await self._dismiss(admission)

    @staticmethod
    def _door(admission: Admission, url: str) -> Door:
        if TOOLS_PATH not in admission.routes:
            return Door(url, admission.key, admission.state_key)
        return Door(url, admission.key, admission.state_key, url + TOOLS_PATH, admission.tools_key)

    async def _dismiss(self, admission: Admission) -> None:
        self._by_key.pop(admission.key, None)
        self._by_state_key.pop(admission.state_key, None)
        self._by_tools_key.pop(admission.tools_key, None)
        await admission.seal()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, Asked)
        path = request.raw_path.partition("?")[0]
        dialect = _BY_PATH.get(path)
        try:
            if dialect is not None:
                return await self._admitted(request, path, dialect)
            return await self._aside(request, path)
        except Rejected as no:
            return Answer(no.body(dialect or _shape(request)), no.status, no.headers, close=no.close)
        finally:
            request.forget()

    async def _aside(self, request: Asked, path: str) -> web.StreamResponse:
        """Paths that are no model calls."""
        if path in _COUNT_PATHS or path == STATE_PATH or path.startswith(("/rollout/", *_MODEL_PATHS)):
            return await self._admitted(request, path, None)
        if path in ("/", "/health", "/v1"):
            return Answer(b'{"status":"ok"}')
        raise Rejected(404, f"there is nothing at {path[:200]!r}", headers=FINAL)

    async def _admitted(self, request: Asked, path: str, dialect: Dialect | None) -> web.StreamResponse:
        admission = self._admission(request, path)
        if admission.requests >= self.config.max_open_calls:
            text = f"{admission.requests} requests of this rollout are being served; ask again"
            raise Rejected(429, text, headers={"Retry-After": "1"})
        task = asyncio.current_task()
        assert task is not None
        admission.enter(task)
        request.on_left = task.cancel
        try:
            if dialect is None:
                return await self._beside(request, path, admission)
            if request.method != "POST":
                raise Rejected(405, f"{path} takes POST, not {request.method[:20]}", headers=FINAL)
            return await self._carrier.carry(request, dialect, admission, task)
        except asyncio.CancelledError:
            if not admission.sealed or request.transport is None:
                raise
            task.uncancel()
            if request.outlet is not None and request.outlet.begun:
                return request.outlet
            raise Rejected(403, OVER, headers=FINAL, close=True) from None
        finally:
            admission.leave(task)

    def _admission(self, request: Asked, path: str) -> Admission:
        key = key_in(request.headers)
        keyrings = [self._by_state_key] if path.startswith("/rollout/") else [self._by_key]
        if path == TOOLS_PATH:
            keyrings.append(self._by_tools_key)
        for keyring in keyrings:
            if key in keyring:
                return keyring[key]
        if key in self._by_key or key in self._by_state_key or key in self._by_tools_key:
            raise Rejected(403, "this key opens something else of its rollout", headers=FINAL)
        what = "the key is wrong, or its rollout is over" if key else "there is no key"
        raise Rejected(401, what, headers=FINAL)

    async def _beside(self, request: Asked, path: str, admission: Admission) -> web.StreamResponse:
        if path.startswith(_MODEL_PATHS):
            return _models(path, admission.session.model)
        if path in _COUNT_PATHS:
            call = await self._carrier.read(request, _MESSAGES, admission)
            return Answer(await count_tokens(admission.session, call))
        if path in admission.routes:
            return await admission.routes[path](request)
        if path == STATE_PATH:
            return await serve_state(request, admission.state, self._bodies)
        raise Rejected(404, f"there is nothing at {path[:200]!r}", headers=FINAL)


def _models(path: str, served: str) -> Answer:
    """All models that there are, which is one; or this one by its name."""
    _, _, wanted = path.partition("/models")
    if not wanted:
        return Answer(write_models((served,)))
    name = unquote(wanted.removeprefix("/"))
    if not wanted.startswith("/") or name != served:
        raise Rejected(404, f"there is no model {name[:200]!r} here; there is {served!r}", headers=FINAL)
    return Answer(write_model(served))


def _shape(request: Asked) -> Dialect:
    """Whose errors a client understands that asks for a path we do not know."""
    anthropic = "anthropic-version" in request.headers or "/messages" in request.raw_path
    return _MESSAGES if anthropic else _CHAT
