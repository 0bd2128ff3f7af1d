"""The official SDKs, blocking and not, with every kind of engine behind the interceptor: any dialect from any engine,
whole and streamed, with tools at once, pictures, retries and timeouts."""

import asyncio
import itertools

import anthropic
import openai
import pytest

from rollwright.dialects import DIALECTS
from rollwright.intercept import InterceptConfig
from rollwright.wire import Image, Sampling, Stop

from .doors import admitted, rigged, until
from .sdk_clients import JOBS, PIXELS, say, say_async, work, work_async
from .sdk_engines import BLIND, EXACT, KINDS, NO_LOCAL_MODEL, engine_of, in_flight, small_model
from .sdk_policy import ANSWER

# The SDKs build their schemas at first use, on the loop.
pytestmark = pytest.mark.blocks_loop

WAYS = list(itertools.product(sorted(DIALECTS), (True, False), (True, False)))
"""Dialect, whether it streams, whether it blocks."""
WORDS = "What is 2+3?"
TIMEOUTS = (openai.APITimeoutError, anthropic.APITimeoutError)


async def working(dialect, door, *, blocking, **options):
    if blocking:
        return await asyncio.to_thread(work, JOBS[dialect], door, **options)
    return await work_async(JOBS[dialect], door, **options)


async def saying(dialect, door, *, blocking, **options):
    if blocking:
        return await asyncio.to_thread(say, JOBS[dialect], door, WORDS, **options)
    return await say_async(JOBS[dialect], door, WORDS, **options)


def check(trace, *, exact, picture=True):
    """One branch with two turns; each message once; the picture by its hash; exact where the engine tells tokens."""
    assert len(trace.leaves) == 1
    roles = [message.role for message in trace.messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant"]
    assert [call.name for call in trace.messages[2].tool_calls] == ["weather"] * 2
    assert trace.messages[2].text.strip() == "Let me see."
    assert trace.reply == ANSWER
    assert [call.failure for call in trace.calls] == [None, None]
    assert trace.trainable is exact
    if exact:
        assert [call.tokens.base for call in trace.calls] == [-1, 0]
    images = [part for part in trace.messages[1].parts if isinstance(part, Image)]
    assert [image.media_type for image in images] == ["image/png"] * picture
    return images


@pytest.mark.parametrize("kind", KINDS)
async def test_every_sdk_does_the_job_with_every_kind_of_engine(kind):
    exact, picture = kind in EXACT, kind not in BLIND
    async with engine_of(kind) as engine, rigged(engine) as rig:
        for dialect, stream, blocking in WAYS:
            async with admitted(rig.interceptor, engine, rig.client, return_tokens=exact) as one:
                done = await working(dialect, one.door, blocking=blocking, stream=stream, picture=picture)
                assert done == (ANSWER, 2), (dialect, stream, blocking)
                images = check(one.trace.freeze(Stop.FINISHED), exact=exact, picture=picture)
                assert [engine.images.get(image) for image in images] == [PIXELS] * picture


async def with_every_engine(first_token_s, one, **options):
    """`one(kind, engine, rig, way)` for every kind of engine, all at once; what blocks and what streams takes turns."""

    async def served(kind, ways):
        async with engine_of(kind, first_token_s=first_token_s) as engine, rigged(engine, **options) as rig:
            await asyncio.gather(*(one(kind, engine, rig, way) for way in ways))
            await until(lambda: (rig.trace.open_calls, in_flight(engine)) == (0, 0))

    async with asyncio.TaskGroup() as group:
        for number, kind in enumerate(KINDS):
            group.create_task(served(kind, WAYS[number % 4 :: 4]))


async def test_an_sdk_that_tries_again_is_answered_once_by_any_engine():
    """The answer takes longer than the SDK waits, so it asks again by itself, and hears in the end what was sampled for
    its first request."""

    async def stubborn(kind, engine, rig, way):
        dialect, stream, blocking = way
        async with admitted(rig.interceptor, engine, rig.client, return_tokens=kind in EXACT) as one:
            options = {"blocking": blocking, "stream": stream, "timeout": 0.5, "max_retries": 12}
            assert (await saying(dialect, one.door, **options)).strip() == "Let me see.", (kind, way)
            trace = one.trace.freeze(Stop.FINISHED)
        assert [call.failure for call in trace.calls] == [None], (kind, way)
        assert trace.trainable is (kind in EXACT)

    await with_every_engine(3.0, stubborn, config=InterceptConfig(retry_grace_s=60.0))


async def test_an_sdk_that_times_out_leaves_no_call_open_at_any_engine():
    async def impatient(kind, engine, rig, way):
        dialect, stream, blocking = way
        options = {"stream": stream, "timeout": 0.3, "picture": kind not in BLIND}
        with pytest.raises(TIMEOUTS):
            await working(dialect, rig.door, blocking=blocking, **options)

    await with_every_engine(60.0, impatient, config=InterceptConfig(retry_grace_s=0.05))


@pytest.mark.skipif(bool(NO_LOCAL_MODEL), reason=f"the local model needs {NO_LOCAL_MODEL}")
async def test_a_real_small_model_answers_every_sdk():
    async with small_model() as engine, rigged(engine, sampling=Sampling(temperature=0, max_tokens=8)) as rig:
        for dialect, stream, blocking in WAYS:
            assert (await saying(dialect, rig.door, blocking=blocking, stream=stream)).strip(), (dialect, stream)
    trace = rig.trace.freeze(Stop.FINISHED)
    assert trace.turns == len(WAYS)
    assert {node.message.text for node in trace.nodes if node.call < 0} == {WORDS}
