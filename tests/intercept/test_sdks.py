"""The official SDKs against the interceptor: errors that they know, rollouts kept apart, what is passed on. What they
do with every kind of engine is in `test_sdk_engines`."""

import asyncio

import pytest

from rollwright.dialects import DIALECTS
from rollwright.engines.config import RelayConfig
from rollwright.engines.function import FunctionEngine
from rollwright.engines.relay import RelayEngine
from rollwright.engines.scripted.config import Fault, ScriptedConfig
from rollwright.engines.scripted.server import ScriptedServer
from rollwright.harnesses import Limits
from rollwright.intercept import InterceptConfig
from rollwright.wire import Stop, assistant
from sdks import anthropic, openai

from .doors import PuppetEngine, rigged
from .sdk_clients import JOBS, Desk, async_client, work_async
from .sdk_engines import engine_of
from .sdk_policy import ANSWER, policy

# The SDKs build their schemas at first use, on the loop.
pytestmark = pytest.mark.blocks_loop

ALL = sorted(DIALECTS)


@pytest.mark.parametrize("dialect", ALL)
async def test_many_sdk_clients_at_once_keep_their_rollouts_apart(dialect):
    async with engine_of("relay-tokens") as engine, rigged(engine, return_tokens=True) as rig:
        async with Desk() as desk, asyncio.TaskGroup() as group:
            running = [
                group.create_task(desk.work(dialect, rig.door, stream=bool(number % 2), blocking=number < 3))
                for number in range(6)
            ]
        assert {task.result()[0] for task in running} == {ANSWER}
        trace = rig.trace.freeze(Stop.FINISHED)
    assert (trace.turns, trace.trainable) == (12, True)
    assert sum(node.call < 0 and node.message.role == "user" for node in trace.nodes) == 1


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_spent_limit_is_a_typed_error_that_no_sdk_retries(dialect, stream):
    async with rigged(FunctionEngine(policy), limits=Limits(max_turns=1)) as rig:
        job = JOBS[dialect]
        async with async_client(job, rig.door, max_retries=5, timeout=30) as client:
            await job.ask(client, job.opening())
            with pytest.raises((openai.BadRequestError, anthropic.BadRequestError), match="turns are spent") as no:
                await (job.ask_stream(client, job.opening()).__aenter__() if stream else job.ask(client, job.opening()))
        assert no.value.request.headers["x-stainless-retry-count"] == "0"
        assert no.value.body["error" if dialect == "messages" else "type"]
        assert rig.session.stopped is Stop.TURNS_SPENT


@pytest.mark.parametrize("dialect", ALL)
async def test_a_wrong_key_is_an_authentication_error(dialect):
    async with rigged(FunctionEngine(policy)) as rig:
        job = JOBS[dialect]
        async with async_client(job, rig.door, max_retries=5, timeout=30).with_options(api_key="wrong") as client:
            with pytest.raises((openai.AuthenticationError, anthropic.AuthenticationError)):
                await job.ask(client, job.opening())


@pytest.mark.parametrize("dialect", ALL)
async def test_an_engine_that_dies_within_a_stream_is_an_error_of_the_sdk(dialect):
    kind = f"relay-{dialect}"
    async with engine_of(kind, fault_script=(Fault.CUT_STREAM,)) as engine, rigged(engine) as rig:
        # For the SDK, `response.failed` is an event like others; it then misses the final response.
        async with async_client(JOBS[dialect], rig.door) as client:
            with pytest.raises(RuntimeError if dialect == "responses" else (openai.APIError, anthropic.APIError)):
                await work_async(JOBS[dialect], client, stream=True)
        assert "cut" in rig.trace.freeze(Stop.FAILED).untrainable


@pytest.mark.parametrize("dialect", ALL)
async def test_an_sdk_that_times_out_frees_the_engine(dialect):
    async with rigged(PuppetEngine(), config=InterceptConfig(retry_grace_s=0.05)) as rig:
        job = JOBS[dialect]
        async with async_client(job, rig.door, max_retries=0, timeout=0.2) as client:
            with pytest.raises((openai.APITimeoutError, anthropic.APITimeoutError)):
                await job.ask(client, job.opening())
        async with asyncio.timeout(10):
            while rig.engine.cancelled == 0:
                await asyncio.sleep(0.001)
    assert rig.trace.open_calls == 0


async def test_models_and_token_counts():
    async with rigged(FunctionEngine(policy)) as rig:
        async with openai.AsyncOpenAI(base_url=f"{rig.door.url}/v1", api_key=rig.door.key) as client:
            assert [model.id async for model in client.models.list()] == ["m"]
        async with anthropic.AsyncAnthropic(base_url=rig.door.url, api_key=rig.door.key) as client:
            short, long = [
                await client.messages.count_tokens(model="x", messages=[{"role": "user", "content": "word " * words}])
                for words in (10, 1000)
            ]
        assert short.input_tokens < 50 < 1000 < long.input_tokens < 2000
    assert len(rig.trace.freeze(Stop.FINISHED).calls) == 0


async def test_what_a_program_asks_for_reaches_an_engine_of_its_dialect_and_no_other():
    for kind, there in (("relay-chat", True), ("relay-messages", False)):
        seen = []

        def watching(call, rng, seen=seen):
            seen.append(call)
            return assistant("ok")

        async with ScriptedServer(ScriptedConfig(), watching) as server:
            dialect = kind.removeprefix("relay-")
            relay = RelayConfig(base_url=server.base_url, dialect=dialect, api_key_env="NO_KEY_IS_NEEDED")
            async with (
                RelayEngine(relay, "m") as engine,
                rigged(engine) as rig,
                openai.AsyncOpenAI(base_url=f"{rig.door.url}/v1", api_key=rig.door.key) as client,
            ):
                asked = [{"role": "user", "content": "hi"}]
                answer = await client.chat.completions.create(
                    model="gpt-any", messages=asked, temperature=0.25, frequency_penalty=0.5
                )
        (call,) = seen
        assert answer.model == "gpt-any"
        assert (call.model, call.sampling.temperature) == ("m", 0.25)
        assert ("frequency_penalty" in call.extra) is there
