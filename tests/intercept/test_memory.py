"""Law 9: what a request brought is let go after its terminal delivery, what a rollout brought when it ends. Nothing is
let go before."""

import asyncio
import base64
import gc
import io
import json
import os
import tracemalloc
import weakref

import pytest

from rollwright.engines.function import FunctionEngine
from rollwright.harnesses import Limits, Session
from rollwright.intercept import Interceptor
from rollwright.intercept.exchange import Exchange
from rollwright.rollouts import Environment
from rollwright.tasks import Task, group_reward
from rollwright.traces import LiveTrace
from rollwright.wire import EngineUnavailable, Image, Stop

from .doors import PuppetEngine, admitted, heard, rigged, until


@pytest.fixture
def born(monkeypatch):
    """Weak references to all exchanges that are made."""
    made = []
    original = Exchange.__init__

    def remembering(self, *args, **kwargs):
        original(self, *args, **kwargs)
        made.append(weakref.ref(self))

    monkeypatch.setattr(Exchange, "__init__", remembering)
    return made


def alive(born):
    gc.collect()
    return [ref() for ref in born if ref() is not None]


async def read(asking):
    async with asking as answer:
        return await answer.read()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("ending", ["value", "error", "cut", "left"])
async def test_a_call_is_let_go_after_its_terminal_delivery_and_not_before(born, stream, ending):
    async with rigged() as rig:
        rig.engine.say("one ", end=False)
        asking = asyncio.ensure_future(read(rig.post("hello", stream=stream)))
        await rig.engine.asked.wait()
        assert len(alive(born)) == 1
        if ending == "left":
            asking.cancel()
        elif ending == "value":
            rig.engine.say("two")
        else:
            rig.engine.play.put_nowait(EngineUnavailable("away"))
        await asyncio.wait([asking])
        await until(lambda: not rig.admission.requests)
        await until(lambda: not alive(born))  # The task that carried it ends a turn of the loop later.
        assert rig.interceptor._bodies.budget.held == 0


async def test_followers_hear_the_end_although_the_call_is_over(born):
    async with rigged() as rig:
        rig.engine.say("one ", end=False)
        first = asyncio.ensure_future(read(rig.post("hello")))
        await rig.engine.asked.wait()
        again = [
            asyncio.ensure_future(read(rig.post("hello", headers={"x-stainless-retry-count": "1"}))) for _ in range(5)
        ]
        await until(lambda: any(exchange.followers == 5 for exchange in rig.admission.running))
        rig.engine.say("two")
        assert [heard("chat", data) for data in await asyncio.gather(first, *again)] == ["one two"] * 6
        await until(lambda: not rig.admission.requests)
        await until(lambda: not alive(born))  # The task that carried it ends a turn of the loop later.


async def test_a_rollout_leaves_nothing_behind_and_costs_only_its_own_entries():
    async with rigged() as rig:
        interceptor, refs = rig.interceptor, []
        others = len(interceptor._by_key)
        for _ in range(20):
            async with admitted(interceptor, FunctionEngine(lambda call: "x"), rig.client) as one:
                await read(one.post("hello", stream=False))
                refs.append(weakref.ref(one.session))
                refs.append(weakref.ref(one.admission))
                assert len(interceptor._by_key) == len(interceptor._by_state_key) == others + 1
            del one
        assert len(interceptor._by_key) == len(interceptor._by_state_key) == others
        gc.collect()
        assert [ref for ref in refs if ref() is not None] == []


async def test_bodies_are_not_kept():
    """Ten requests of two megabytes each that have nothing in common, then the same again: the heap does not grow."""

    async def send(rig):
        for _ in range(10):
            noise = base64.b64encode(os.urandom(1_500_000)).decode()
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": noise}]}).encode()
            await read(rig.post(body=io.BytesIO(body)))

    async def rollout(interceptor, client):
        async with admitted(interceptor, FunctionEngine(lambda call: "x"), client) as one:
            await send(one)

    async with rigged() as rig:
        await rollout(rig.interceptor, rig.client)
        gc.collect()
        tracemalloc.start()
        try:
            await rollout(rig.interceptor, rig.client)
            gc.collect()
            grown, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert grown < 2**20


async def test_an_undelivered_stream_of_a_rollout_that_ends_is_let_go(born):
    interceptor = Interceptor()
    async with interceptor, rigged(interceptor=_Borrowed(interceptor)) as rig:
        rig.engine.say("half", end=False)
        asking = asyncio.ensure_future(read(rig.post("hello")))
        await rig.engine.asked.wait()
    await asyncio.wait([asking])
    assert not alive(born)
    assert rig.engine.cancelled == 1


class _Borrowed:
    """An interceptor that somebody else closes."""

    def __init__(self, interceptor):
        self._interceptor = interceptor

    async def __aenter__(self):
        return self._interceptor

    async def __aexit__(self, *_):
        pass


PIXEL = base64.b64encode(os.urandom(9000)).decode()


def seeing(text):
    url = f"data:image/png;base64,{PIXEL}"
    return [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]


async def test_an_image_lives_until_the_group_is_scored_and_not_longer():
    engine = FunctionEngine(lambda call: "seen")
    looked = []

    class Looking(Task, frozen=True):
        @group_reward
        def look(self, traces):
            for trace in traces:
                (image,) = [part for part in trace.nodes[0].message.parts if isinstance(part, Image)]
                looked.append(len(engine.images.get(image)))
            return [1.0 for _ in traces]

    class Program:
        needs_runtime = False
        needs_door = True

        async def run(self, session, around):
            import aiohttp

            async with aiohttp.ClientSession(headers={"x-api-key": around.door.key}) as client:
                body = {"model": "m", "messages": [{"role": "user", "content": seeing("look")}]}
                for _ in range(3):
                    async with client.post(f"{around.door.url}/v1/chat/completions", json=body) as answer:
                        assert answer.status == 200
            return Stop.FINISHED

    async with Environment([], harness=Program()).serving(engine, "m") as serving:
        traces = await serving.run_group(Looking(id="t"), 3)
        assert [trace.failure for trace in traces] == [None] * 3
        assert looked == [9000] * 3
        assert len(engine.images) == 0


async def test_parsed_calls_of_many_rollouts_at_once_are_all_let_go(born):
    engine = PuppetEngine()
    async with rigged(engine) as rig:
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                engine.say(f"answer {number}")
                group.create_task(read(rig.post(f"hello {number}", stream=bool(number % 2))))
        await until(lambda: not rig.admission.requests)
        assert len(born) == 50
        await until(lambda: not alive(born))  # The task that carried it ends a turn of the loop later.
    assert rig.trace.turns == 50


async def test_a_session_that_shows_no_image_opens_no_hold():
    engine = FunctionEngine(lambda call: "x")
    session = Session(engine, LiveTrace("t", 0), model="m", limits=Limits())
    session.close()
    assert len(engine.images) == 0
