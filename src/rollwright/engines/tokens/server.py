"""Where the server is, and how many tokens a conversation may have: told by the settings, or by the server's own
`/v1/models`, asked once."""

from __future__ import annotations

import asyncio

import aiohttp
import msgspec

from rollwright.engines.config import RelayConfig
from rollwright.engines.endpoint import ClientSide, Endpoint, base_url, find_endpoint
from rollwright.wire import EngineRefused, UsageError

_ASK_TIMEOUT_S = 10.0
_MAX_BYTES = 2**20


def token_endpoint(config: RelayConfig, wire: ClientSide) -> Endpoint:
    """The address of a wire's path, which lies at the root of the server, whether or not base_url ends in /v1."""
    if not config.base_url:
        raise UsageError("the tokens engine needs the address of a server; set engine.relay.base_url")
    endpoint = find_endpoint(config, wire)
    root = base_url(config.base_url).path.rstrip("/").removesuffix("/v1")
    return msgspec.structs.replace(endpoint, url=endpoint.url.with_path(root + wire.path))


class _Model(msgspec.Struct):
    id: str = ""
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


class ContextLimit:
    """The room that is left for an answer."""

    def __init__(self, endpoint: Endpoint, path: str, tokens: int | None) -> None:
        self._endpoint = endpoint
        self._models = endpoint.url.with_path(endpoint.url.path.removesuffix(path) + "/v1/models")
        self._told = tokens
        self._asking = asyncio.Lock()
        self._served: dict[str, int] | None = None

    async def room(self, prompt: int, wanted: int | None, model: str) -> int:
        """The most tokens of an answer to a prompt of this length. EngineRefused if there is no room at all."""
        limit = self._told or await self._ask(model)
        if limit is None:
            if wanted is None:
                text = "set engine.tokens.context_tokens, or max_tokens in the sampling"
                raise EngineRefused(f"{self._endpoint.name} does not say how long a conversation may be; {text}")
            return wanted
        if prompt >= limit:
            raise EngineRefused(f"the prompt has {prompt} tokens and the model takes {limit} with its answer")
        return min(limit - prompt, wanted or limit)

    async def _ask(self, model: str) -> int | None:
        async with self._asking:
            if self._served is None:
                self._served = await self._read()
        served = self._served or {}
        # A server with one model answers for whatever name it goes by.
        return served.get(model) or min(served.values(), default=None)

    async def _read(self) -> dict[str, int] | None:
        """None if the server is away; the call itself will tell what is wrong. One that knows no such path says so."""
        endpoint = self._endpoint
        try:
            async with (
                asyncio.timeout(_ASK_TIMEOUT_S),
                aiohttp.ClientSession(headers=endpoint.headers, cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.get(
                    self._models,
                    allow_redirects=False,
                    proxy=endpoint.proxy,
                    proxy_headers=endpoint.proxy_headers,
                ) as response,
            ):
                if response.status != 200:
                    return {}
                body = b""
                while len(body) < _MAX_BYTES and (chunk := await response.content.read(_MAX_BYTES)):
                    body += chunk
                models = msgspec.json.decode(body, type=_Models)
        except msgspec.MsgspecError:
            return {}
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        return {model.id: model.max_model_len for model in models.data if model.max_model_len}
