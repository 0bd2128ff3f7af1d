"""Every kind of engine, with the same model in it; the local model alone says what it likes."""

import asyncio
import importlib.util
from contextlib import asynccontextmanager, contextmanager

import tiny
from rollwright.dialects import DIALECTS
from rollwright.engines.config import EngineConfig, LocalConfig, RelayConfig, TokensConfig
from rollwright.engines.factory import open_engine
from rollwright.engines.function import FunctionEngine
from rollwright.engines.local import WEIGHTS_PACKAGE, local_engine
from rollwright.engines.relay import RelayEngine
from rollwright.engines.scripted.config import Fault, ScriptedConfig
from rollwright.engines.scripted.server import ScriptedServer
from rollwright.engines.tokens.engine import TokensEngine
from rollwright.renderers import load_engine
from rollwright.renderers.contract import RenderOptions
from rollwright.renderers.families.qwen35 import QWEN3_6
from rollwright.renderers.pool import RendererPool
from rollwright.renderers.ranks import byte_vocabulary
from rollwright.renderers.render import TableRenderer
from rollwright.wire import Finish, ModelReply, TextDelta

from .sdk_policy import __file__ as policy_file
from .sdk_policy import patient

IDS = ("generate", "completions")
"""Those that send ids and get ids, by the path of the server that they ask."""
KINDS = ["function", "scripted", *IDS, "relay-tokens", *(f"relay-{name}" for name in sorted(DIALECTS))]
EXACT = (*IDS, "relay-tokens")
"""Those that tell their tokens."""
BLIND = ("completions",)
"""Those that refuse pictures."""
NO_LOCAL_MODEL = " and ".join(name for name in ("xllamacpp", WEIGHTS_PACKAGE) if not importlib.util.find_spec(name))
_VISION = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")


class PatientFunction(FunctionEngine):
    """One that waits when it is told to, and counts whom it works for."""

    def __init__(self, stalls):
        super().__init__(lambda call: "unused")
        self.stalls = stalls
        self.in_flight = 0

    @contextmanager
    def _working(self):
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    async def complete(self, call):
        with self._working():
            message = await patient(call)
        return ModelReply(message, Finish.TOOL_CALLS if message.tool_calls else Finish.STOP)

    async def stream(self, call, ear):
        if not self.stalls:
            return await super().stream(call, ear)
        with self._working():
            ear.hear(TextDelta("Let me"))
            return await asyncio.Event().wait()


@asynccontextmanager
async def engine_of(kind, *, stalls=False, **scripted):
    """An engine of this kind, which falls silent in the middle of its streams if it `stalls`. It does not ask again by
    itself; `scripted` are settings of the server behind it."""
    config = ScriptedConfig(
        chunk_chars=3,
        tokens=kind in EXACT,
        context_tokens=16384,
        policy=f"{policy_file}:patient",
        faults={Fault.STALL: 1.0} if stalls else {},
        **scripted,
    )
    if kind == "function":
        yield PatientFunction(stalls)
    elif kind == "scripted":
        settings = EngineConfig(kind="scripted", relay=RelayConfig(max_retries=0), scripted=config)
        async with open_engine(settings, "m") as engine:
            yield engine
    else:
        renderer = _renderer() if kind in IDS else None
        async with ScriptedServer(config, patient, renderer) as server, _client(kind, server.base_url) as engine:
            yield engine


def _client(kind, base_url):
    name = kind.removeprefix("relay-")
    dialect = name if name in DIALECTS else "chat"
    relay = RelayConfig(base_url=base_url, dialect=dialect, api_key_env="NO_KEY_IS_NEEDED", max_retries=0)
    if kind not in IDS:
        return RelayEngine(relay, "m")
    return TokensEngine(TokensConfig(endpoint=kind), relay, RendererPool(_renderer, size=2), "m")


def _renderer():
    """Of a family that sees."""
    return TableRenderer(QWEN3_6, load_engine(byte_vocabulary(tiny.CONTROLS + _VISION, tiny.WORDS)), RenderOptions())


def in_flight(engine):
    """Calls that the engine still works for."""
    if isinstance(engine, PatientFunction):
        return engine.in_flight
    return getattr(engine.stats, "carried", engine.stats).in_flight


def small_model():
    return local_engine(LocalConfig(context_tokens=256, parallel=1, start_timeout_s=60))
