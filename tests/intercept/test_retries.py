"""Law 10: a request that its SDK marks as a retry is answered once, not sampled twice. One without a mark is new."""

import asyncio

import pytest

from rollwright.dialects import DIALECTS
from rollwright.engines.function import FunctionEngine
from rollwright.intercept import InterceptConfig
from rollwright.wire import EngineUnavailable, Stop
from sdks import anthropic, openai

from .doors import heard, rigged, until

ALL = sorted(DIALECTS)
AGAIN = {"x-stainless-retry-count": "1"}
FIRST = {"x-stainless-retry-count": "0"}


async def told(asking):
    async with asking as answer:
        return answer.status, await answer.read()


def said(dialect, stream, data):
    return heard(dialect, data) if stream else DIALECTS[dialect].read_reply(data).message.text


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_retry_joins_the_call_that_runs(dialect, stream):
    async with rigged() as rig:
        rig.engine.say("one ", end=False)
        first = asyncio.ensure_future(told(rig.post("hello", dialect=dialect, stream=stream, headers=FIRST)))
        await rig.engine.asked.wait()
        again = asyncio.ensure_future(told(rig.post("hello", dialect=dialect, stream=stream, headers=AGAIN)))
        await until(lambda: any(exchange.followers for exchange in rig.admission.running))
        rig.engine.say("two")
        for status, data in await asyncio.gather(first, again):
            assert status == 200
            assert said(dialect, stream, data) == "one two"
        assert len(rig.engine.calls) == 1
    assert rig.trace.turns == 1


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_retry_of_an_answered_call_gets_the_answer_that_is_on_record(dialect, stream):
    async with rigged() as rig:
        rig.engine.say("once")
        first = await told(rig.post("hello", dialect=dialect, stream=stream, headers=FIRST))
        again = await told(rig.post("hello", dialect=dialect, stream=stream, headers=AGAIN))
        assert {said(dialect, stream, data) for _, data in (first, again)} == {"once"}
        assert len(rig.engine.calls) == 1
    assert (rig.trace.turns, len(rig.trace.freeze(Stop.FINISHED).nodes)) == (1, 2)


async def test_a_repetition_that_is_not_marked_is_another_call():
    async with rigged() as rig:
        for word in ("heads", "tails"):
            rig.engine.say(word)
            assert said("chat", False, (await told(rig.post("flip", stream=False)))[1]) == word
    trace = rig.trace.freeze(Stop.FINISHED)
    assert (trace.turns, len(trace.leaves)) == (2, 2)


async def test_a_retry_of_something_else_is_a_call_of_its_own():
    async with rigged() as rig:
        rig.engine.say("a")
        await told(rig.post("one", stream=False, headers=FIRST))
        rig.engine.say("b")
        _, data = await told(rig.post("two", stream=False, headers=AGAIN))
        assert said("chat", False, data) == "b"
        rig.engine.say("c")
        _, data = await told(rig.post("one", stream=True, headers=AGAIN))
        assert said("chat", True, data) == "c"
    assert rig.trace.turns == 3


async def test_a_key_of_the_client_names_its_request():
    async with rigged() as rig:
        rig.engine.say("first")
        rig.engine.say("second")
        answers = [
            said("chat", False, (await told(rig.post("go", stream=False, headers={"idempotency-key": key})))[1])
            for key in ("k1", "k1", "k2", "k1")
        ]
        assert answers == ["first", "first", "second", "first"]
    assert rig.trace.turns == 2


async def test_a_failed_call_is_made_again():
    async with rigged() as rig:
        rig.engine.play.put_nowait(EngineUnavailable("away"))
        assert (await told(rig.post("go", stream=False, headers=FIRST)))[0] == 503
        rig.engine.say("back")
        status, data = await told(rig.post("go", stream=False, headers=AGAIN))
        assert (status, said("chat", False, data)) == (200, "back")
    trace = rig.trace.freeze(Stop.FINISHED)
    assert [call.failure is None for call in trace.calls] == [False, True]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_comes_back_finds_its_call(stream):
    """An SDK that lost its patience hangs up and asks again within a moment. Its call went on."""
    async with rigged(config=InterceptConfig(retry_grace_s=30)) as rig:
        asking = asyncio.ensure_future(told(rig.post("go", stream=stream, headers=FIRST)))
        await rig.engine.asked.wait()
        asking.cancel()
        await until(lambda: any(exchange.deserted for exchange in rig.admission.running))
        again = asyncio.ensure_future(told(rig.post("go", stream=stream, headers=AGAIN)))
        await until(lambda: any(exchange.followers for exchange in rig.admission.running))
        rig.engine.say("here")
        status, data = await again
        assert (status, said("chat", stream, data)) == (200, "here")
        assert (len(rig.engine.calls), rig.engine.cancelled) == (1, 0)
    assert rig.trace.turns == 1


async def test_a_client_that_does_not_come_back_frees_the_engine_after_a_while():
    async with rigged(config=InterceptConfig(retry_grace_s=0.05)) as rig:
        asking = asyncio.ensure_future(told(rig.post("go", stream=False, headers=FIRST)))
        await rig.engine.asked.wait()
        asking.cancel()
        await until(lambda: rig.engine.cancelled == 1)
        await until(lambda: not rig.admission.running)
    assert rig.trace.open_calls == 0


async def test_an_answer_that_nobody_took_waits_for_its_client():
    async with rigged(config=InterceptConfig(retry_grace_s=30)) as rig:
        asking = asyncio.ensure_future(told(rig.post("go", stream=False, headers=FIRST)))
        await rig.engine.asked.wait()
        asking.cancel()
        await until(lambda: any(exchange.deserted for exchange in rig.admission.running))
        rig.engine.say("kept")
        await until(lambda: rig.trace.turns == 1)
        _, data = await told(rig.post("go", stream=False, headers=AGAIN))
        assert said("chat", False, data) == "kept"
    assert rig.trace.turns == 1


async def test_followers_that_leave_take_nobody_with_them():
    async with rigged() as rig:
        rig.engine.say("one ", end=False)
        first = asyncio.ensure_future(told(rig.post("go", headers=FIRST)))
        await rig.engine.asked.wait()
        again = asyncio.ensure_future(told(rig.post("go", headers=AGAIN)))
        await until(lambda: any(exchange.followers for exchange in rig.admission.running))
        again.cancel()
        await until(lambda: not any(exchange.followers for exchange in rig.admission.running))
        rig.engine.say("two")
        assert heard("chat", (await first)[1]) == "one two"
        assert rig.engine.cancelled == 0


async def test_a_call_goes_on_for_those_who_follow_it():
    async with rigged() as rig:
        rig.engine.say("one ", end=False)
        first = asyncio.ensure_future(told(rig.post("go", headers=FIRST)))
        await rig.engine.asked.wait()
        again = asyncio.ensure_future(told(rig.post("go", headers=AGAIN)))
        await until(lambda: any(exchange.followers for exchange in rig.admission.running))
        first.cancel()
        await until(lambda: any(exchange.deserted for exchange in rig.admission.running))
        rig.engine.say("two")
        assert heard("chat", (await again)[1]) == "one two"
    assert (rig.trace.turns, rig.engine.cancelled) == (1, 0)


async def test_answers_are_kept_up_to_a_number():
    async with rigged(FunctionEngine(lambda call: "x"), config=InterceptConfig(kept_answers=2)) as rig:
        for word in ("a", "b", "c"):
            await told(rig.post(word, stream=False, headers=FIRST))
        for word in ("c", "b"):
            await told(rig.post(word, stream=False, headers=AGAIN))
        assert rig.trace.turns == 3
        await told(rig.post("a", stream=False, headers=AGAIN))
    assert rig.trace.turns == 4


async def test_the_openai_sdk_that_gives_up_waiting_is_answered_once():
    """The real thing: a timeout of the SDK, its own retry, one generation in the trace."""
    async with rigged(config=InterceptConfig(retry_grace_s=30)) as rig:
        client = openai.AsyncOpenAI(base_url=f"{rig.door.url}/v1", api_key=rig.door.key, timeout=0.3, max_retries=5)
        asking = asyncio.ensure_future(
            client.chat.completions.create(model="any", messages=[{"role": "user", "content": "go"}])
        )
        await until(lambda: any(exchange.followers for exchange in rig.admission.running))
        rig.engine.say("patience")
        answer = await asking
        assert answer.choices[0].message.content == "patience"
        assert len(rig.engine.calls) == 1
        await client.close()
    assert rig.trace.turns == 1


async def test_the_anthropic_sdk_that_gives_up_waiting_is_answered_once():
    async with rigged(config=InterceptConfig(retry_grace_s=30)) as rig:
        client = anthropic.AsyncAnthropic(base_url=rig.door.url, api_key=rig.door.key, timeout=0.3, max_retries=5)
        asking = asyncio.ensure_future(
            client.messages.create(model="any", max_tokens=9, messages=[{"role": "user", "content": "go"}])
        )
        await until(lambda: any(exchange.followers for exchange in rig.admission.running))
        rig.engine.say("patience")
        answer = await asking
        assert answer.content[0].text == "patience"
        assert len(rig.engine.calls) == 1
        await client.close()
    assert rig.trace.turns == 1
