"""From settings to a tokens engine: the tokenizer, the family, the pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollwright.dialects import ImageStore
from rollwright.engines.config import RelayConfig, TokensConfig
from rollwright.renderers import RendererPool, RenderOptions, ThinkingPolicy, load_engine, renderer_for
from rollwright.renderers.source import read_template, read_tokens
from rollwright.wire import UsageError

from .engine import TokensEngine


@asynccontextmanager
async def tokens_engine(
    config: TokensConfig, relay: RelayConfig, model: str, *, images: ImageStore | None = None
) -> AsyncIterator[TokensEngine]:
    """The tokenizer is loaded in a thread, since that takes a second."""
    pool = await asyncio.to_thread(make_pool, config, model)
    async with TokensEngine(config, relay, pool, model, images=images) as engine:
        yield engine


def make_pool(config: TokensConfig, model: str) -> RendererPool:
    """The renderers that the settings ask for. A family that is named wins over the template beside the tokenizer."""
    if not config.tokenizer:
        raise UsageError("the tokens engine needs the model's tokenizer; set engine.tokens.tokenizer to its directory")
    engine = load_engine(config.tokenizer, kind=config.tokenizer_engine)
    template = "" if config.family else read_template(config.tokenizer)
    tokens = read_tokens(config.tokenizer) if template else None
    history = ThinkingPolicy.KEEP if config.keep_thinking else ThinkingPolicy.TEMPLATE
    options = RenderOptions(history=history)
    name = config.family or model
    return RendererPool(
        lambda: renderer_for(engine, template=template, model=name, options=options, tokens=tokens),
        size=config.pool_size,
    )
