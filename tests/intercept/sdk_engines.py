"""Every kind of engine, with the same model in it; the local model alone says what it likes."""

import asyncio
import importlib.util
from contextlib import asynccontextmanager

import tiny
from rollwright.dialects import DIALECTS
from rollwright.engines.config import EngineConfig, LocalConfig, RelayConfig, TokensConfig
from rollwright.engines.factory import open_engine
from rollwright.engines.function import FunctionEngine
from rollwright.engines.local import WEIGHTS_PACKAGE, local_engine
from rollwright.engines.relay import RelayEngine
from rollwright.engines.scripted.config import ScriptedConfig
from rollwright.engines.scripted.server import ScriptedServer
from rollwright.engines.tokens.engine import TokensEngine

from .sdk_policy import __file__ as policy_file
from .sdk_policy import policy

KINDS = ["function", "tokens", "relay-tokens", "scripted", *(f"relay-{name}" for name in sorted(DIALECTS))]
EXACT = ("tokens", "relay-tokens")
"""Those that tell their tokens."""
BLIND = ("tokens",)
"""Those that refuse pictures."""
NO_LOCAL_MODEL = " and ".join(name for name in ("xllamacpp", WEIGHTS_PACKAGE) if not importlib.util.find_spec(name))


class SlowFunction(FunctionEngine):
    def __init__(self, first_token_s):
        super().__init__(policy)
        self.first_token_s = first_token_s
        self.in_flight = 0

    async def complete(self, call):
        self.in_flight += 1
        try:
            await asyncio.sleep(self.first_token_s)
            return await super().complete(call)
        finally:
            self.in_flight -= 1


@asynccontextmanager
async def engine_of(kind, *, first_token_s=0.0, **scripted):
    """An engine of this kind. It does not ask again by itself; `scripted` are settings of the server behind it."""
    config = ScriptedConfig(
        chunk_chars=3,
        tokens=kind in EXACT,
        context_tokens=16384,
        policy=f"{policy_file}:policy",
        first_token_s=first_token_s,
        **scripted,
    )
    if kind == "function":
        yield SlowFunction(first_token_s)
    elif kind == "scripted":
        settings = EngineConfig(kind="scripted", relay=RelayConfig(max_retries=0), scripted=config)
        async with open_engine(settings, "m") as engine:
            yield engine
    else:
        renderer = tiny.renderer() if kind == "tokens" else None
        async with ScriptedServer(config, policy, renderer) as server, _client(kind, server.base_url) as engine:
            yield engine


def _client(kind, base_url):
    name = kind.removeprefix("relay-")
    dialect = name if name in DIALECTS else "chat"
    relay = RelayConfig(base_url=base_url, dialect=dialect, api_key_env="NO_KEY_IS_NEEDED", max_retries=0)
    return TokensEngine(TokensConfig(), relay, tiny.pool(), "m") if kind == "tokens" else RelayEngine(relay, "m")


def in_flight(engine):
    """Calls that the engine still works for."""
    if isinstance(engine, SlowFunction):
        return engine.in_flight
    return getattr(engine.stats, "carried", engine.stats).in_flight


def small_model():
    return local_engine(LocalConfig(context_tokens=256, parallel=1, start_timeout_s=60))
