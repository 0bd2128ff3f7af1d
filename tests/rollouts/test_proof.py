"""An environment that is served for training begins with an engine that tells its tokens, or does not begin."""

from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from rollwright.engines import RelayConfig
from rollwright.engines.relay import RelayEngine
from rollwright.engines.scripted.config import ScriptedConfig
from rollwright.engines.scripted.server import ScriptedServer
from rollwright.rollouts import Environment
from rollwright.tasks import Task, Taskset, Toolset
from rollwright.wire import EngineRefused, assistant


class Nothing(Taskset, frozen=True):
    def tasks(self):
        return []


class Opened(Toolset):
    """Knows whether it was opened."""

    was_opened = False

    async def open(self):
        self.was_opened = True


class StrippedStreams(RelayEngine):
    """A router in between that does not know the token fields of streams."""

    async def stream(self, call, ear):
        return replace(await super().stream(call, ear), tokens=None)


@asynccontextmanager
async def relayed(kind=RelayEngine, *, tokens):
    async with ScriptedServer(ScriptedConfig(tokens=tokens), lambda call, rng: assistant("ok")) as server:
        config = RelayConfig(base_url=server.base_url, api_key_env="NO_KEY_IS_NEEDED")
        async with kind(config, "m") as engine:
            yield engine, server


@pytest.mark.parametrize(
    ("kind", "tokens", "fault"),
    [(RelayEngine, False, "answers without token ids"), (StrippedStreams, True, "streams answers without token ids")],
    ids=["whole", "streamed"],
)
async def test_stripped_tokens_end_a_training_run_before_it_begins(kind, tokens, fault):
    toolset = Opened()
    environment = Environment(Nothing(), toolsets=[toolset])
    async with relayed(kind, tokens=tokens) as (engine, _):
        with pytest.raises(EngineRefused, match=f"model m {fault}"):
            async with environment.serving(engine, "m", return_tokens=True):
                raise AssertionError("it began")
        assert not toolset.was_opened
        async with environment.serving(engine, "m") as serving:
            trace = await serving.run(Task(id="t", prompt="Hello."))
    assert trace.failure is None
    assert toolset.was_opened


async def test_an_evaluation_asks_for_no_proof_and_a_training_run_for_one():
    async with relayed(tokens=True) as (engine, server):
        async with Environment(Nothing()).serving(engine, "m"):
            assert len(server.log) == 0
        async with Environment(Nothing()).serving(engine, "m", return_tokens=True) as serving:
            assert [entry.call.stream for entry in server.log] == [False, True]
            trace = await serving.run(Task(id="t", prompt="Hello."))
    assert trace.trainable, trace.untrainable
