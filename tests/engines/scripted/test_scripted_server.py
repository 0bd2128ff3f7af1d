"""The scripted engine as a server: dialects, borders, tokens, determinism, clients that leave."""

from __future__ import annotations

import asyncio
from collections import Counter

import aiohttp
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.scripted.scripted_client import Answered, served, until
from rollwright.engines.scripted import Fault, ScriptedConfig, ScriptedServer
from rollwright.engines.scripted.policies import echo
from rollwright.engines.scripted.tokens import decode
from rollwright.wire import (
    EngineRefused,
    Finish,
    Message,
    ModelCall,
    ModelReply,
    Reasoning,
    Text,
    ToolCall,
    ToolSpec,
    UsageError,
    WireError,
    assistant,
    tool_result,
    user,
)

DIALECTS = ("chat", "responses", "messages")
ECHO = ScriptedConfig(policy="echo", chunk_chars=5)
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
in_dialects = pytest.mark.parametrize("dialect", DIALECTS)


def call(*messages, **fields):
    return ModelCall("some-model", messages, **fields)


@in_dialects
@both_ways
async def test_an_answer_arrives_in_every_dialect(dialect, stream):
    async with served(ECHO) as (server, client):
        reply = await client.ask(call(user("say this, 123 times"), stream=stream), dialect)
    assert reply.message == assistant("say this, 123 times")
    assert reply.finish is Finish.STOP
    assert reply.usage == server.log[0].reply.usage
    assert reply.usage.prompt_tokens > 0 < reply.usage.completion_tokens
    assert [(entry.dialect, entry.number) for entry in server.log] == [(dialect, 0)]


@in_dialects
@both_ways
async def test_tool_calls_and_reasoning_arrive(dialect, stream):
    said = Message(
        "assistant",
        (
            Reasoning("let me think about it", "c2ln"),
            Text("looking"),
            ToolCall("call_1", "add", '{"a": 1,  "b": 20}'),
            ToolCall("call_2", "add", '{"a": 3}'),
        ),
    )
    tools = (ToolSpec("add", "adds", {"type": "object", "properties": {}}),)
    async with served(ECHO, lambda call, rng: said) as (_, client):
        reply = await client.ask(call(user("1+20"), tools=tools, stream=stream), dialect)
    assert reply.message.tool_calls == said.tool_calls
    assert reply.message.text == "looking"
    assert reply.message.reasoning == "let me think about it"
    assert reply.finish is Finish.TOOL_CALLS


@in_dialects
async def test_the_engine_sees_what_it_was_told(dialect):
    messages = (user("go"), Message("assistant", (ToolCall("c", "f", "{}"),)), tool_result("c", "done"))
    async with served(ECHO) as (server, client):
        reply = await client.ask(call(*messages), dialect)
    assert reply.message == assistant("done")
    assert server.log[0].call.messages == messages


@both_ways
async def test_tokens_in_the_reply_are_those_in_the_log(stream):
    config = ScriptedConfig(tokens=True, routed_layers=3, routed_topk=2, routed_dtype="u2", policy="echo")
    async with served(config) as (server, client):
        asked = call(user("hello 1234"), stream=stream, return_tokens=True, extra={"routed_experts_from": 4})
        reply = await client.ask(asked)
        logged = server.log[0].tokens
        remote = (await client.log())[0].tokens
    for other in (logged, remote):
        assert np.array_equal(reply.tokens.prompt_ids, other.prompt_ids)
        assert np.array_equal(reply.tokens.completion_ids, other.completion_ids)
        assert np.array_equal(reply.tokens.logprobs, other.logprobs)
        assert np.array_equal(reply.tokens.routing.rows, other.routing.rows)
        assert reply.tokens.routing.start == other.routing.start == 4
    length = len(reply.tokens.prompt_ids) + len(reply.tokens.completion_ids)
    assert reply.tokens.routing.rows.shape == (length - 1 - 4, 3, 2)
    assert reply.usage.total_tokens == length
    assert decode(reply.tokens.completion_ids.tolist()) == "hello 1234"


async def test_tokens_come_only_to_those_who_ask_an_engine_that_has_them():
    async with served(ScriptedConfig(policy="echo")) as (server, client):
        assert (await client.ask(call(user("a"), return_tokens=True))).tokens is None
    async with served(ScriptedConfig(policy="echo", tokens=True)) as (server, client):
        assert (await client.ask(call(user("a")))).tokens is None
        assert server.log[0].tokens is not None


turn_texts = st.lists(st.text("the 0123 ä", min_size=1, max_size=20), min_size=2, max_size=5)


@settings(max_examples=15)
@given(turn_texts, st.booleans(), st.sampled_from(["chat"]))
def test_prompts_extend_samples_over_the_wire(texts, stream, dialect):
    async def talk():
        async with served(ScriptedConfig(policy="echo", tokens=True, chunk_chars=3)) as (_, client):
            messages, tape = (), []
            for text in texts:
                messages += (user(text),)
                reply = await client.ask(call(*messages, stream=stream, return_tokens=True), dialect)
                prompt = reply.tokens.prompt_ids.tolist()
                assert prompt[: len(tape)] == tape
                tape = prompt + reply.tokens.completion_ids.tolist()
                messages += (reply.message,)

    asyncio.run(talk())


def dicey(call, rng):
    return assistant(f"{call.messages[-1].text} {rng.random():.6f} {rng.asked}")


@settings(max_examples=15)
@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
    st.booleans(),
    st.integers(0, 2),
)
def test_order_concurrency_and_faults_change_no_answer(questions, random, concurrent, seed):
    """What a client hears, with its retries, is a function of what it asked, and of nothing else."""
    faults = {Fault.RATE_LIMIT: 0.2, Fault.SERVER_ERROR: 0.2, Fault.CUT_STREAM: 0.1, Fault.MALFORMED_JSON: 0.1}

    async def heard(config, questions, concurrent):
        async with served(config, dicey) as (_, client):

            async def ask(question):
                while True:
                    try:
                        return (await client.ask(call(user(question), stream=question == "a"))).message.text
                    except (Answered, aiohttp.ClientPayloadError, WireError):
                        if not config.faults:
                            raise

            if concurrent:
                return Counter(await asyncio.gather(*map(ask, questions)))
            return Counter([await ask(question) for question in questions])

    calm = asyncio.run(heard(ScriptedConfig(seed=seed), questions, False))
    shuffled = random.sample(questions, len(questions))
    assert asyncio.run(heard(ScriptedConfig(seed=seed, faults=faults), shuffled, concurrent)) == calm
    assert sum(calm.values()) == len(questions)


async def test_another_seed_gives_other_answers():
    said = set()
    for seed in range(3):
        async with served(ScriptedConfig(seed=seed), dicey) as (_, client):
            said.add((await client.ask(call(user("a")))).message.text)
    assert len(said) == 3


async def test_policies_may_wait_and_may_give_whole_replies():
    async def slowly(call, rng):
        await asyncio.sleep(0)
        return ModelReply(assistant("done"), Finish.REFUSAL, policy_version=7)

    async with served(ECHO, slowly) as (_, client):
        reply = await client.ask(call(user("go")))
    assert (reply.finish, reply.policy_version, reply.model) == (Finish.REFUSAL, 7, "some-model")


@in_dialects
@both_ways
async def test_an_answer_that_no_json_can_hold_is_a_clean_error(dialect, stream):
    async with served(ECHO, lambda call, rng: assistant("\ud800")) as (server, client):
        with pytest.raises(Answered) as caught:
            await client.ask(call(user("go"), stream=stream), dialect)
        assert (caught.value.status, server.stats.broken) == (500, 1)


async def test_a_policy_that_breaks_is_a_500_and_the_server_goes_on():
    def policy(call, rng):
        text = call.messages[-1].text
        if text == "refuse":
            raise EngineRefused("not that")
        return {"break": 1 / 0}[text] if text == "break" else text if text == "lie" else assistant("fine")

    async with served(ECHO, policy) as (server, client):
        for text, status, sentence in (
            ("break", 500, "ZeroDivisionError"),
            ("lie", 500, "str"),
            ("refuse", 400, "that"),
        ):
            with pytest.raises(Answered, match=sentence) as caught:
                await client.ask(call(user(text)))
            assert caught.value.status == status
        assert (await client.ask(call(user("go on")))).message == assistant("fine")
        assert (server.stats.broken, server.stats.refused, server.stats.served) == (2, 1, 1)
        assert [entry.reply is None for entry in server.log] == [True, True, True, False]


@in_dialects
async def test_a_wrong_key_is_refused_in_the_shape_of_the_dialect(dialect, monkeypatch):
    monkeypatch.setenv("SCRIPTED_TEST_KEY", "right")
    async with served(ScriptedConfig(policy="echo", key_env="SCRIPTED_TEST_KEY")) as (server, client):
        assert (await client.ask(call(user("a")), dialect, key="right")).message == assistant("a")
        for key in ("wrong", "", "ключ".encode().decode("latin-1")):
            with pytest.raises(Answered, match="key is wrong") as caught:
                await client.ask(call(user("a")), dialect, key=key)
            assert caught.value.status == 401
        assert server.stats.refused == 3
        assert (await client.get("/health")) == {"status": "ok"}


def test_a_key_that_is_not_set_is_a_usage_error(monkeypatch):
    monkeypatch.delenv("SCRIPTED_TEST_KEY", raising=False)
    with pytest.raises(UsageError, match="SCRIPTED_TEST_KEY"):
        ScriptedServer(ScriptedConfig(policy="echo", key_env="SCRIPTED_TEST_KEY"))


@in_dialects
async def test_bad_requests_are_refused_with_a_sentence(dialect):
    from rollwright.dialects import DIALECTS as BY_NAME

    url_path = BY_NAME[dialect].path
    config = ScriptedConfig(policy="echo", models=("one", "two"), max_body_mb=0.01)
    bodies = (
        (b"{", 400),
        (b"[]", 400),
        (b"\xff", 400),
        (b'{"model": 1}', 400),
        (b'{"model": "\\ud800"}', 400),
        (b" " * 20000, 413),
    )
    async with served(config) as (server, client):
        for body, status in bodies:
            async with client.session.post(client.base_url + url_path, data=body) as response:
                assert response.status == status
                assert (await response.json())["error"]["message"]
        with pytest.raises(Answered, match="one, two") as caught:
            await client.ask(call(user("a")), dialect)
        assert caught.value.status == 404
        async with client.session.get(client.base_url + url_path) as response:
            assert response.status == 405
        assert server.stats.refused == len(bodies) + 2
        known = msgspec.structs.replace(call(user("a")), model="two")
        assert (await client.ask(known, dialect)).message == assistant("a")


async def test_models_stats_reset_and_unknown_paths():
    async with served(ScriptedConfig(policy="echo", models=("one", "two"))) as (server, client):
        assert [model["id"] for model in (await client.get("/v1/models"))["data"]] == ["one", "two"]
        await client.ask(msgspec.structs.replace(call(user("a")), model="one"))
        assert (await client.get("/scripted/stats"))["served"] == 1
        async with client.session.get(client.base_url + "/nowhere") as response:
            assert response.status == 404
        async with client.session.post(client.base_url + "/scripted/reset") as response:
            assert response.status == 200
        assert (server.log, server.stats.served, server.stats.received) == ([], 0, 0)
    assert server.stats.in_flight == 0


async def test_the_log_keeps_the_newest_calls():
    async with served(ScriptedConfig(policy="echo", log_calls=3)) as (server, client):
        for number in range(5):
            await client.ask(call(user(str(number))))
        assert [entry.call.messages[-1].text for entry in server.log] == ["2", "3", "4"]
        assert [entry.number for entry in await client.log()] == [2, 3, 4]


@both_ways
async def test_a_client_that_leaves_cancels_its_call(stream):
    begun, left = asyncio.Event(), asyncio.Event()

    async def endless(call, rng):
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            left.set()

    async with served(ECHO, endless) as (server, client):
        asking = asyncio.create_task(client.ask(call(user("a"), stream=stream)))
        await begun.wait()
        assert server.stats.in_flight == 1
        asking.cancel()
        async with asyncio.timeout(10):
            await left.wait()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: server.stats.in_flight == 0)
        assert (server.stats.cancelled, server.stats.served) == (1, 0)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_256_streams_all_end(dialect):
    config = ScriptedConfig(policy="echo", chunk_chars=4, latency_s=0.01, latency_jitter_s=0.01, first_token_s=0.001)
    async with served(config) as (server, client):
        asked = [f"question {number} of many" for number in range(256)]
        replies = await asyncio.gather(*(client.ask(call(user(text), stream=True), dialect) for text in asked))
        assert [reply.message.text for reply in replies] == asked
        assert (server.stats.served, server.stats.in_flight, server.stats.cancelled) == (256, 0, 0)


async def test_latency_is_drawn_around_its_mean():
    from rollwright.engines.scripted.player import Player

    player = Player(ScriptedConfig(latency_s=1.0, latency_jitter_s=0.5), echo)
    drawn = [player.arrive(call(user(str(number))), "chat").latency_s for number in range(200)]
    assert 0.5 <= min(drawn) < 0.7 < 1.3 < max(drawn) <= 1.5
    assert 0.9 < sum(drawn) / 200 < 1.1


async def test_closing_the_server_ends_calls_in_flight():
    begun = asyncio.Event()

    async def endless(call, rng):
        begun.set()
        await asyncio.get_running_loop().create_future()

    async with served(ECHO, endless) as (server, client):
        asking = asyncio.create_task(client.ask(call(user("a"))))
        await begun.wait()
        async with asyncio.timeout(10):
            await server.__aexit__(None, None, None)
            with pytest.raises(Exception, match="disconnected"):
                await asking
    assert server.stats.in_flight == 0
