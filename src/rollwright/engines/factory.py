"""From settings to an engine that answers. Whoever opens it closes it, and with it the process it may have started."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import get_args

import msgspec

from rollwright.dialects import ImageStore
from rollwright.wire import UsageError
from rollwright.wire.hints import hint

from .config import EngineConfig, EngineKind
from .contract import Engine


@asynccontextmanager
async def open_engine(
    config: EngineConfig, model: str = "", *, images: ImageStore | None = None
) -> AsyncIterator[Engine]:
    """The engine of these settings. `model` is the model of calls that name none; `images` holds what calls show."""
    # The kinds are imported when they are asked for: settings alone need no HTTP client.
    if config.kind == "relay":
        from .relay import RelayEngine

        async with RelayEngine(config.relay, model, images=images) as relay:
            yield relay
    elif config.kind == "local":
        from .local import local_engine

        async with local_engine(config.local, model, images=images) as local:
            yield local
    elif config.kind == "tokens":
        from .tokens.opening import tokens_engine

        async with tokens_engine(config.tokens, config.relay, model, images=images) as tokens:
            yield tokens
    elif config.kind == "scripted":
        async with _scripted_engine(config, model, images) as scripted:
            yield scripted
    else:
        raise UsageError(f"engine {config.kind!r} is not known; {hint(config.kind, get_args(EngineKind))}")


@asynccontextmanager
async def _scripted_engine(config: EngineConfig, model: str, images: ImageStore | None) -> AsyncIterator[Engine]:
    """A relay to a scripted server in its own process. The relay's limits and dialect hold here too."""
    from .relay import RelayEngine
    from .scripted import scripted_process

    async with scripted_process(config.scripted) as server:
        relay = msgspec.structs.replace(
            config.relay,
            base_url=server.base_url,
            api_key_env=config.scripted.key_env or "ROLLWRIGHT_SCRIPTED_ENGINE_HAS_NO_KEY",
        )
        async with RelayEngine(relay, model or "scripted", images=images, obituary=server.obituary) as engine:
            yield engine
