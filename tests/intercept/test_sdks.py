"""The official SDKs against the interceptor, with every kind of engine behind it: any dialect from any engine."""

import asyncio
import importlib.util
from contextlib import asynccontextmanager

import anthropic
import openai
import pytest

from rollwright.dialects import DIALECTS
from rollwright.engines.config import LocalConfig, RelayConfig
from rollwright.engines.function import FunctionEngine
from rollwright.engines.local import WEIGHTS_PACKAGE, local_engine
from rollwright.engines.relay import RelayEngine
from rollwright.engines.scripted.config import Fault, ScriptedConfig
from rollwright.engines.scripted.server import ScriptedServer
from rollwright.harnesses import Limits
from rollwright.intercept import InterceptConfig
from rollwright.wire import Image, Sampling, Stop, Text, ToolCall, ToolResult, assistant

from .doors import PuppetEngine, heard, rigged
from .sdk_clients import JOBS, PIXELS, Async, work, work_async

# The SDKs build their schemas at first use, on the loop.
pytestmark = pytest.mark.blocks_loop

ALL = sorted(DIALECTS)
ENGINES = ["function", "tokens", *(f"relay-{name}" for name in ALL)]


def policy(call, rng=None):
    """Two tools at once, then an answer."""
    results = [part for message in call.messages for part in message.parts if isinstance(part, ToolResult)]
    if not results:
        cities = ("Oslo", "Łódź")
        return assistant(
            "Let me see.", *(ToolCall(f"call_{n}", "weather", f'{{"city": "{city}"}}') for n, city in enumerate(cities))
        )
    told = " and ".join(part.text for result in results for part in result.content if isinstance(part, Text))
    return assistant(f"It is {told}.")


@asynccontextmanager
async def engine_of(kind, **scripted):
    if kind == "function":
        yield FunctionEngine(policy)
        return
    config = ScriptedConfig(chunk_chars=3, tokens=kind == "tokens", **scripted)
    dialect = kind.removeprefix("relay-") if kind.startswith("relay-") else "chat"
    async with ScriptedServer(config, policy) as server:
        relay = RelayConfig(base_url=server.base_url, dialect=dialect, api_key_env="NO_KEY_IS_NEEDED", max_retries=0)
        async with RelayEngine(relay, "m") as engine:
            yield engine


def check(trace, *, tokens):
    """One branch with two turns; each message once; the picture by its hash; exact where the engine tells tokens."""
    assert len(trace.leaves) == 1
    roles = [message.role for message in trace.messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant"]
    (image,) = [part for part in trace.messages[1].parts if isinstance(part, Image)]
    assert image.media_type == "image/png"
    assert [call.name for call in trace.messages[2].tool_calls] == ["weather"] * 2
    assert trace.messages[2].text == "Let me see."
    assert trace.reply == "It is sunny in Oslo and sunny in Łódź."
    assert [call.failure for call in trace.calls] == [None, None]
    assert trace.trainable is tokens
    if tokens:
        assert [call.tokens.base for call in trace.calls] == [-1, 0]
    return image


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_an_async_sdk_does_the_job_with_any_engine(kind, dialect, stream):
    async with engine_of(kind) as engine, rigged(engine, return_tokens=kind == "tokens") as rig:
        said, tools = await work_async(JOBS[dialect], rig.door, stream=stream)
        assert (said, tools) == ("It is sunny in Oslo and sunny in Łódź.", 2)
        image = check(rig.trace.freeze(Stop.FINISHED), tokens=kind == "tokens")
        assert engine.images.get(image) == PIXELS


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_blocking_sdk_does_the_job(dialect, stream):
    async with engine_of("relay-chat") as engine, rigged(engine) as rig:
        said, tools = await asyncio.to_thread(work, JOBS[dialect], rig.door, stream=stream)
        assert (said, tools) == ("It is sunny in Oslo and sunny in Łódź.", 2)
        check(rig.trace.freeze(Stop.FINISHED), tokens=False)


@pytest.mark.parametrize("dialect", ALL)
async def test_many_sdk_clients_at_once_keep_their_rollouts_apart(dialect):
    async with engine_of("tokens") as engine, rigged(engine, return_tokens=True) as rig:
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(work_async(JOBS[dialect], rig.door, stream=bool(number % 2))) for number in range(6)
            ]
        assert {task.result()[0] for task in running} == {"It is sunny in Oslo and sunny in Łódź."}
        trace = rig.trace.freeze(Stop.FINISHED)
    assert (trace.turns, trace.trainable) == (12, True)
    assert sum(node.call < 0 and node.message.role == "user" for node in trace.nodes) == 1


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_spent_limit_is_a_typed_error_that_no_sdk_retries(dialect, stream):
    async with rigged(FunctionEngine(policy), limits=Limits(max_turns=1)) as rig:
        job = JOBS[dialect]
        async with job.client(rig.door, Async, max_retries=5, timeout=30) as client:
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
        async with job.client(rig.door, Async, max_retries=5, timeout=30).with_options(api_key="wrong") as client:
            with pytest.raises((openai.AuthenticationError, anthropic.AuthenticationError)):
                await job.ask(client, job.opening())


@pytest.mark.parametrize("dialect", ALL)
async def test_an_engine_that_dies_within_a_stream_is_an_error_of_the_sdk(dialect):
    kind = f"relay-{dialect}"
    async with engine_of(kind, fault_script=(Fault.CUT_STREAM,)) as engine, rigged(engine) as rig:
        # For the SDK, `response.failed` is an event like others; it then misses the final response.
        with pytest.raises(RuntimeError if dialect == "responses" else (openai.APIError, anthropic.APIError)):
            await work_async(JOBS[dialect], rig.door, stream=True)
        assert "cut" in rig.trace.freeze(Stop.FAILED).untrainable


@pytest.mark.parametrize("dialect", ALL)
async def test_an_sdk_that_times_out_frees_the_engine(dialect):
    async with rigged(PuppetEngine(), config=InterceptConfig(retry_grace_s=0.05)) as rig:
        job = JOBS[dialect]
        async with job.client(rig.door, Async, max_retries=0, timeout=0.2) as client:
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


MISSING = [name for name in ("xllamacpp", WEIGHTS_PACKAGE) if importlib.util.find_spec(name) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"the local model needs {' and '.join(MISSING)}")
async def test_a_real_small_model_speaks_every_dialect():
    local = LocalConfig(context_tokens=256, parallel=1, start_timeout_s=60)
    sampling = Sampling(temperature=0, max_tokens=8)
    async with local_engine(local) as engine, rigged(engine, sampling=sampling) as rig:
        for dialect in ALL:
            for stream in (True, False):
                async with rig.post("What is 2+3?", dialect=dialect, stream=stream) as answer:
                    data = await answer.read()
                    assert answer.status == 200, data
                said = heard(dialect, data) if stream else DIALECTS[dialect].read_reply(data).message.text
                assert said.strip()
    trace = rig.trace.freeze(Stop.FINISHED)
    assert trace.turns == 6
    assert {node.message.text for node in trace.nodes if node.call < 0} == {"What is 2+3?"}
