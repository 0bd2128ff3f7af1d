"""How long a prompt is: exact where the engine can say, a guess elsewhere, and never a call on record."""

import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

import tiny
from rollwright.engines.config import RelayConfig, TokensConfig
from rollwright.engines.function import FunctionEngine
from rollwright.engines.relay import RelayEngine
from rollwright.engines.scripted.config import ScriptedConfig
from rollwright.engines.scripted.server import ScriptedServer
from rollwright.engines.tokens.engine import TokensEngine
from rollwright.intercept.counting import guessed
from rollwright.wire import ModelCall, Stop, assistant, user
from sdks import anthropic

from .doors import rigged

# The SDKs build their schemas at first use, on the loop.
pytestmark = pytest.mark.blocks_loop

ASKED = [{"role": "user", "content": "How long is this? " * 20}]
TOOLS = [{"name": "look", "description": "looks", "input_schema": {"type": "object", "properties": {}}}]


def client(rig):
    return anthropic.AsyncAnthropic(base_url=rig.door.url, api_key=rig.door.key, max_retries=0, timeout=30)


async def test_a_token_engine_counts_the_ids_that_it_would_send():
    """For a new conversation and for one that goes on: what is counted is what is then billed."""
    config = ScriptedConfig(tokens=True, context_tokens=16384)
    async with ScriptedServer(config, lambda call, rng: assistant("Quite long."), tiny.renderer()) as server:
        relay = RelayConfig(base_url=server.base_url, api_key_env="NO_KEY_IS_NEEDED")
        async with (
            TokensEngine(TokensConfig(), relay, tiny.pool(), "m") as engine,
            rigged(engine, return_tokens=True) as rig,
            client(rig) as sdk,
        ):
            history = list(ASKED)
            for _ in range(3):
                counted = await sdk.messages.count_tokens(model="any", messages=history, tools=TOOLS)
                said = await sdk.messages.create(model="any", messages=history, tools=TOOLS, max_tokens=50)
                assert counted.input_tokens == said.usage.input_tokens
                history += [{"role": "assistant", "content": said.content[0].text}, {"role": "user", "content": "And?"}]
            assert (engine.stats.extended, engine.stats.rendered) == (2, 1), "counting leaves no mark on the counters"
            picture = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
            shown = [{"role": "user", "content": [{"type": "image", "source": picture}]}]
            assert (await sdk.messages.count_tokens(model="any", messages=shown)).input_tokens == 1504
        assert len(server.log) == 3
    assert rig.trace.freeze(Stop.FINISHED).turns == 3


@asynccontextmanager
async def anthropic_endpoint(answer):
    """Something that counts, and what it was asked."""
    asked = []

    async def count(request):
        asked.append((request.path, request.headers.get("x-api-key"), json.loads(await request.read())))
        return answer()

    runner = web.ServerRunner(web.Server(count))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


async def test_an_anthropic_endpoint_is_asked(monkeypatch):
    monkeypatch.setenv("THEIR_KEY", "their-key")
    async with anthropic_endpoint(lambda: web.json_response({"input_tokens": 4321})) as (url, asked):
        relay = RelayConfig(base_url=url, dialect="messages", api_key_env="THEIR_KEY")
        async with RelayEngine(relay, "m") as engine, rigged(engine) as rig, client(rig) as sdk:
            counted = await sdk.messages.count_tokens(
                model="any", messages=ASKED, tools=TOOLS, system="Be brief.", thinking={"type": "disabled"}
            )
        assert counted.input_tokens == 4321
    fields = {"model": "m", "messages": ASKED, "tools": TOOLS, "system": "Be brief.", "thinking": {"type": "disabled"}}
    assert asked == [("/v1/messages/count_tokens", "their-key", fields)]
    assert len(rig.trace.freeze(Stop.FINISHED).calls) == 0


@pytest.mark.parametrize(
    "answer",
    [
        lambda: web.json_response({"error": "no such path"}, status=404),
        lambda: web.Response(status=500),
        lambda: web.json_response({"tokens": 3}),
        lambda: web.Response(body=b"\xff"),
    ],
    ids=["missing", "broken", "other", "garbage"],
)
async def test_an_endpoint_that_does_not_count_leaves_a_guess(answer):
    guess = guessed(ModelCall("m", (user(ASKED[0]["content"]),)))
    async with anthropic_endpoint(answer) as (url, asked):
        relay = RelayConfig(base_url=url, dialect="messages", api_key_env="NO_KEY_IS_NEEDED")
        async with RelayEngine(relay, "m") as engine, rigged(engine) as rig, client(rig) as sdk:
            assert (await sdk.messages.count_tokens(model="any", messages=ASKED)).input_tokens == guess
    assert len(asked) == 1
    async with rigged(FunctionEngine(lambda call: "unused")) as rig, client(rig) as sdk:
        assert (await sdk.messages.count_tokens(model="any", messages=ASKED)).input_tokens == guess
