"""An engine that does not tell its tokens is known before the first rollout."""

import pytest
from msgspec.structs import replace

from rollwright.engines import RelayConfig, prove_tokens
from rollwright.engines.relay import RelayEngine
from rollwright.engines.scripted.config import ScriptedConfig
from rollwright.engines.scripted.server import ScriptedServer
from rollwright.wire import EngineRefused, assistant


class Stripped(RelayEngine):
    """A router in between that does not know the token fields of streams."""

    async def stream(self, call, ear):
        return replace(await super().stream(call, ear), tokens=None)


def said(call, rng):
    return assistant("ok")


@pytest.mark.parametrize(("kind", "tokens", "fault"), [(RelayEngine, False, "answers"), (Stripped, True, "streams")])
async def test_tokens_that_are_stripped_are_missed_at_the_start(kind, tokens, fault):
    async with ScriptedServer(ScriptedConfig(tokens=tokens), said) as server:
        relay = RelayConfig(base_url=server.base_url, api_key_env="NO_KEY_IS_NEEDED")
        async with kind(relay, "m") as engine:
            with pytest.raises(EngineRefused, match=f"model m {fault}.* without token ids"):
                await prove_tokens(engine, "m")


async def test_an_engine_that_tells_its_tokens_is_asked_both_ways():
    async with ScriptedServer(ScriptedConfig(tokens=True), said) as server:
        relay = RelayConfig(base_url=server.base_url, api_key_env="NO_KEY_IS_NEEDED")
        async with RelayEngine(relay, "m") as engine:
            await prove_tokens(engine, "m")
        assert [entry.call.stream for entry in server.log] == [False, True]
