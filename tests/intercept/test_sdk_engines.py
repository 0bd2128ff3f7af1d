"""The official SDKs, blocking and not, with every kind of engine behind the interceptor: any dialect from any engine,
whole and streamed, with tools at once, pictures, retries and timeouts."""

import asyncio
import itertools
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from rollwright.dialects import DIALECTS
from rollwright.intercept import InterceptConfig
from rollwright.wire import Image, Sampling, Stop
from sdks import anthropic, openai

from .doors import admitted, rigged, until
from .sdk_clients import PIXELS, Desk
from .sdk_engines import BLIND, EXACT, KINDS, NO_LOCAL_MODEL, engine_of, in_flight, small_model
from .sdk_policy import ANSWER, WAITED, wait_for

# The SDKs build their schemas at first use, on the loop.
pytestmark = pytest.mark.blocks_loop

WAYS = [
    dict(zip(("dialect", "stream", "blocking"), way, strict=True))
    for way in itertools.product(sorted(DIALECTS), (True, False), (True, False))
]
WORDS = "What is 2+3?"
_AT_ONCE = 32


@pytest.fixture
async def desk():
    async with Desk() as desk:
        yield desk


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
async def test_every_sdk_does_the_job_with_every_kind_of_engine(kind, desk):
    exact, picture = kind in EXACT, kind not in BLIND
    async with engine_of(kind) as engine, rigged(engine) as rig:
        for way in WAYS:
            async with admitted(rig.interceptor, engine, rig.client, return_tokens=exact) as one:
                assert await desk.work(door=one.door, picture=picture, **way) == (ANSWER, 2), way
                images = check(one.trace.freeze(Stop.FINISHED), exact=exact, picture=picture)
                assert [engine.images.get(image) for image in images] == [PIXELS] * picture


@asynccontextmanager
async def every_engine(*, stalls=False, ways=WAYS, **options):
    """Every kind of engine behind an interceptor of its own, with a rollout for each way of asking. At the end no
    engine works for anybody."""

    @asynccontextmanager
    async def served(kind):
        config = InterceptConfig(**options)
        async with engine_of(kind, stalls=stalls) as engine, rigged(engine, config=config) as rig:
            yield kind, rig
            await until(lambda: in_flight(engine) == 0)

    async with AsyncExitStack() as stack:
        rigs = [await stack.enter_async_context(served(kind)) for kind in KINDS]
        yield [(kind, rig, way) for kind, rig in rigs for way in ways]


async def at_once(places, one):
    """`one(kind, rig, way)` for each place, with a rollout of its own. So many at once that their SDKs, which share
    the loop with all else here, keep each other from no deadline."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def alone(kind, rig, way):
        async with turns, admitted(rig.interceptor, rig.engine, rig.client, return_tokens=kind in EXACT) as rollout:
            await one(kind, rollout, way)

    async with asyncio.TaskGroup() as group:
        for place in places:
            group.create_task(alone(*place))


async def test_an_sdk_that_tries_again_is_answered_once_by_any_engine(desk, tmp_path):
    """The answer takes longer than the SDK waits, so it asks again by itself, and hears in the end what was sampled for
    its first request."""

    async def stubborn(kind, one, way):
        gate = tmp_path / "-".join(map(str, (kind, *way.values())))
        saying = desk.say(door=one.door, words=wait_for(gate), timeout=0.5, max_retries=20, **way)
        asking = asyncio.create_task(saying)
        await until(lambda: any(call.followers for call in one.admission.running), within_s=50)
        gate.touch()
        assert (await asking).strip() == WAITED, (kind, way)
        trace = one.trace.freeze(Stop.FINISHED)
        assert [call.failure for call in trace.calls] == [None], (kind, way)
        assert trace.trainable is (kind in EXACT)

    async with every_engine(retry_grace_s=60.0) as places:
        assert len(places) == len(KINDS) * 12
        await at_once(places, stubborn)


async def test_an_sdk_that_times_out_leaves_no_call_open_at_any_engine(desk, tmp_path):
    async def impatient(kind, one, way):
        with pytest.raises((openai.APITimeoutError, anthropic.APITimeoutError)):
            await desk.say(door=one.door, words=wait_for(tmp_path / "never"), timeout=0.3, **way)
        await until(lambda: not one.admission.running)
        assert one.trace.open_calls == 0
        assert all(call.failure is not None for call in one.trace.freeze(Stop.FINISHED).calls)

    async with every_engine(retry_grace_s=0.05) as places:
        await at_once(places, impatient)


async def test_an_sdk_whose_stream_falls_silent_leaves_no_call_open_at_any_engine(desk):
    """Half of the answer came, so it is not asked for again, and what was cut is not trained on."""

    async def cut_off(kind, one, way):
        # The SDKs let through the error of their HTTP library here, and not all have the same one.
        (lost,) = await asyncio.gather(
            desk.say(door=one.door, words=WORDS, timeout=0.5, max_retries=5, **way), return_exceptions=True
        )
        assert type(lost).__name__ in ("ReadTimeout", "APITimeoutError"), (kind, way, lost)
        await until(lambda: not one.admission.running)
        trace = one.trace.freeze(Stop.FINISHED)
        # More than one only where the machine is so slow that the first half came late.
        assert {call.failure is None for call in trace.calls} == {False}, (kind, way)
        assert not trace.trainable

    ways = [way for way in WAYS if way["stream"]]
    async with every_engine(stalls=True, ways=ways) as places:
        await at_once(places, cut_off)


async def test_an_sdk_that_is_told_to_come_back_does_and_is_answered(desk, tmp_path):
    """What the interceptor itself refuses for the moment is not lost: SDKs know the status and the header."""

    came = Counter()

    async def turned_away(way, rig):
        async with admitted(rig.interceptor, rig.engine, rig.client) as one:
            gate = tmp_path / "-".join(map(str, way.values()))
            first = asyncio.create_task(desk.say(door=one.door, words=wait_for(gate), **way))
            await until(lambda: one.admission.running)
            again = asyncio.create_task(desk.say(door=one.door, words=wait_for(tmp_path), max_retries=5, **way))
            await until(lambda: came[one.door.key] == 2)
            gate.touch()
            assert [(await asking).strip() for asking in (first, again)] == [WAITED] * 2
            assert one.trace.turns == 2
            assert came[one.door.key] >= 3

    async with engine_of("function") as engine, rigged(engine, config=InterceptConfig(max_open_calls=1)) as rig:
        admission = rig.interceptor._admission

        def counted(request, path):
            found = admission(request, path)
            came[found.key] += 1
            return found

        rig.interceptor._admission = counted
        async with asyncio.TaskGroup() as group:
            for way in WAYS:
                group.create_task(turned_away(way, rig))


@pytest.mark.skipif(bool(NO_LOCAL_MODEL), reason=f"the local model needs {NO_LOCAL_MODEL}")
async def test_a_real_small_model_answers_every_sdk(desk):
    async with small_model() as engine, rigged(engine, sampling=Sampling(temperature=0, max_tokens=8)) as rig:
        for way in WAYS:
            assert (await desk.say(door=rig.door, words=WORDS, **way)).strip(), way
    trace = rig.trace.freeze(Stop.FINISHED)
    assert trace.turns == len(WAYS)
    assert {node.message.text for node in trace.nodes if node.call < 0} == {WORDS}
