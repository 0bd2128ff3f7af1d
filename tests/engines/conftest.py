"""A live endpoint, and relays to it whose pauses take no time."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web

from engines.fake_endpoint import Endpoint, Naps
from rollwright.engines.config import RelayConfig
from rollwright.engines.relay import RelayEngine


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    app = web.Application(client_max_size=2**27)
    app.router.add_route("*", "/{path:.*}", endpoint.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    endpoint.port = runner.addresses[0][1]
    yield endpoint
    await runner.cleanup()


@pytest.fixture
def naps() -> Naps:
    return Naps()


MakeEngine = Callable[..., RelayEngine]


@pytest.fixture
async def relay(endpoint: Endpoint, naps: Naps) -> AsyncIterator[MakeEngine]:
    """Makes engines for the endpoint; `obituary` and settings by name."""
    engines: list[RelayEngine] = []

    def make(*, obituary: Callable[[], str | None] = lambda: None, **settings: object) -> RelayEngine:
        settings = {"base_url": f"http://127.0.0.1:{endpoint.port}", "max_retries": 3, **settings}
        config = RelayConfig(**settings)  # type: ignore[arg-type]
        engines.append(RelayEngine(config, "m", sleep=naps, dice=random.Random(7), obituary=obituary))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.close()
        assert (engine.stats.in_flight, engine.stats.waiting) == (0, 0)
