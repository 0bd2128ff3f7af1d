"""The client of token servers, against the scripted engine behind real HTTP: both paths, whole answers and streams."""

import asyncio
from contextlib import aclosing, asynccontextmanager
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

import tiny
from ears import asked_for, events_from
from rollwright.engines.config import RelayConfig, TokensConfig
from rollwright.engines.scripted import Fault, ScriptedConfig, ScriptedServer
from rollwright.engines.tokens import TokensEngine
from rollwright.renderers.contract import ThinkingPolicy
from rollwright.wire import (
    EngineRefused,
    EngineUnavailable,
    Finish,
    Image,
    Message,
    ModelCall,
    Reasoning,
    Sampling,
    Text,
    ToolCall,
    ToolSpec,
    UsageError,
    assistant,
    reply_of,
    tool_result,
    user,
)

ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
WAYS = [(path, stream) for path in ("generate", "completions") for stream in (False, True)]
KEEP = {"history": ThinkingPolicy.KEEP}
ways = pytest.mark.parametrize(("path", "stream"), WAYS)


def turns(call):
    return sum(message.role == "assistant" for message in call.messages)


def calls_twice(call, rng):
    """Thinks and calls a tool in two turns, then says something."""
    if turns(call) < 2:
        call = ToolCall("", "add", '{"a":  1, "b": ["é", {}]}')
        return Message("assistant", (Reasoning("the abc\nthing "), Text("Adding."), call))
    return assistant(f"the thing is in the {rng.randint(0, 99)}")


async def nap(seconds):
    await asyncio.sleep(0)


@asynccontextmanager
async def world(policy=calls_twice, path="generate", server=None, options=None, **settings):
    """A scripted server and an engine for it."""
    config = ScriptedConfig(**{"tokens": True, "context_tokens": 8192, **(server or {})})
    async with ScriptedServer(config, policy, tiny.renderer()) as scripted:
        relay = RelayConfig(base_url=scripted.base_url)
        pool = tiny.pool(**(options or {}))
        async with TokensEngine(TokensConfig(endpoint=path, **settings), relay, pool, "m", sleep=nap) as engine:
            yield engine, scripted


async def ask(engine, messages, stream=False, tools=(ADD,), **sampling):
    call = ModelCall("", tuple(messages), tools, sampling=Sampling(**sampling))
    if not stream:
        return await engine.complete(call)
    return reply_of(await events_from(engine, call))


async def talk(engine, count, stream=False):
    """A conversation of `count` turns; the replies."""
    messages, replies = [user("hi 你好")], []
    for _ in range(count):
        replies.append(await ask(engine, messages, stream))
        messages.append(replies[-1].message)
        calls = replies[-1].message.tool_calls
        messages.append(tool_result(calls[0].id, "it is <|im_end|> 3") if calls else user("more"))
    return replies


def whole(tokens):
    return np.concatenate([tokens.prompt_ids, tokens.completion_ids])


@ways
async def test_what_is_on_record_is_what_the_server_got_and_sampled(path, stream):
    async with world(path=path) as (engine, server):
        replies = await talk(engine, 4, stream)
        assert len(server.log) == 4
        for reply, entry in zip(replies, server.log, strict=True):
            assert entry.dialect == path
            assert np.array_equal(reply.tokens.prompt_ids, entry.tokens.prompt_ids)
            assert np.array_equal(reply.tokens.completion_ids, entry.tokens.completion_ids)
            assert np.array_equal(reply.tokens.logprobs, entry.tokens.logprobs)
            assert reply.usage.prompt_tokens == len(reply.tokens.prompt_ids)
            assert reply.usage.completion_tokens == len(reply.tokens.completion_ids)


@ways
async def test_ids_become_the_message_that_was_said(path, stream):
    async with world(path=path) as (engine, _server):
        first, _, last = await talk(engine, 3, stream)
    assert first.message.reasoning == "the abc\nthing "
    assert first.message.text == "Adding."
    (call,) = first.message.tool_calls
    assert (call.name, call.arguments) == ("add", '{"a":  1, "b": ["é", {}]}')
    assert first.finish is Finish.TOOL_CALLS
    assert last.finish is Finish.STOP
    assert last.message.text.startswith("the thing is in the ")


@ways
async def test_a_turn_extends_what_was_sampled(path, stream):
    async with world(path=path) as (engine, _server):
        replies = await talk(engine, 3, stream)
        assert engine.stats.extended == 2
        assert engine.stats.rendered == 1
    unusual = 0
    for before, after in pairwise(replies):
        tape = whole(before.tokens)
        assert np.array_equal(after.tokens.prompt_ids[: len(tape)], tape)
        text = tiny.engine().decode(before.tokens.completion_ids)
        unusual += not np.array_equal(tiny.engine().encode(text), before.tokens.completion_ids)
    assert unusual, "every answer was sampled as a tokenizer would have it, so this proved nothing"


async def test_a_conversation_that_cannot_be_extended_is_rendered_anew_and_counted():
    async with world() as (engine, server):
        replies = await talk(engine, 4)
        assert engine.stats.declined == {"thinking_dropped": 1}
        assert engine.stats.rendered == 2
        assert not np.array_equal(replies[3].tokens.prompt_ids[:600], whole(replies[2].tokens)[:600])
        assert np.array_equal(replies[3].tokens.prompt_ids, server.log[3].tokens.prompt_ids)


async def test_keeping_the_thinking_extends_every_turn():
    async with world(options=KEEP) as (engine, _server):
        await talk(engine, 6)
        assert engine.stats.extended == 5
        assert engine.stats.declined == {}


@ways
async def test_routed_experts_come_as_a_delta_and_cover_the_tape(path, stream):
    async with world(path=path, server={"routed_layers": 3, "routed_topk": 2}, routed_experts=True) as (engine, server):
        replies = await talk(engine, 3, stream)
    known = 0
    for reply, entry in zip(replies, server.log, strict=True):
        routing = reply.tokens.routing
        assert routing.start == known == entry.call.extra["routed_start"]
        known = len(whole(reply.tokens)) - 1
        assert len(routing.rows) == known - routing.start
        assert np.array_equal(routing.rows, entry.tokens.routing.rows)


async def test_a_server_that_knows_no_offset_sends_all_rows_and_the_delta_is_kept():
    def all_rows(call, rng):
        call.extra["routed_start"] = 0
        return calls_twice(call, rng)

    async with world(all_rows, server={"routed_layers": 2, "routed_topk": 1}, routed_experts=True) as (engine, server):
        first, second = await talk(engine, 2)
    rows = server.log[1].tokens.routing.rows
    start = len(whole(first.tokens)) - 1
    assert second.tokens.routing.start == start
    assert np.array_equal(second.tokens.routing.rows, rows[start:])


@pytest.mark.parametrize("path", ["generate", "completions"])
async def test_the_probe_fails_where_token_fields_are_stripped(path):
    async with world(path=path) as (engine, _server):
        await engine.probe()
        assert engine.stats.remembered == 0
    async with world(path=path, server={"tokens": False}) as (engine, _server):
        with pytest.raises(EngineRefused, match="router in between may strip"):
            await engine.probe()
        with pytest.raises(EngineRefused, match="router in between may strip"):
            await ask(engine, [user("hi")], stream=True)


async def test_missing_experts_are_refused():
    async with world(routed_experts=True) as (engine, _server):
        with pytest.raises(EngineRefused, match="--enable-return-routed-experts"):
            await engine.probe()


async def test_an_answer_gets_the_room_that_the_server_tells():
    async with world(server={"context_tokens": 400}) as (engine, server):
        reply = await ask(engine, [user("x" * 300)], tools=())
        assert server.log[0].call.sampling.max_tokens == 400 - len(reply.tokens.prompt_ids)
        await ask(engine, [user("x" * 300)], tools=(), max_tokens=7)
        assert server.log[1].call.sampling.max_tokens == 7
        with pytest.raises(EngineRefused, match=r"the prompt has \d+ tokens and the model takes 400"):
            await ask(engine, [user("x" * 400)], tools=())
        assert len(server.log) == 2


async def test_the_settings_win_over_what_the_server_tells():
    async with world(context_tokens=100) as (engine, server):
        await ask(engine, [user("x" * 50)], tools=())
        sent = server.log[0]
        assert sent.call.sampling.max_tokens == 100 - len(sent.tokens.prompt_ids)


async def test_a_server_that_tells_no_limit_needs_max_tokens():
    async with world(server={"context_tokens": 0}) as (engine, server):
        with pytest.raises(EngineRefused, match="does not say how long"):
            await ask(engine, [user("hi")])
        await ask(engine, [user("hi")], max_tokens=50)
        assert server.log[0].call.sampling.max_tokens == 50


@ways
async def test_a_cut_answer_is_closed_before_the_next_turn(path, stream):
    async with world(lambda call, rng: assistant("abc " * 20), path=path, options=KEEP) as (engine, server):
        cut = await ask(engine, [user("go")], stream, max_tokens=8)
        assert cut.finish is Finish.LENGTH
        assert cut.usage.completion_tokens == 8
        after = await ask(engine, [user("go"), cut.message, user("on")], stream, max_tokens=8)
        assert engine.stats.extended == 1
    tape = whole(cut.tokens)
    added = after.tokens.prompt_ids[len(tape) :]
    assert np.array_equal(after.tokens.prompt_ids[: len(tape)], tape)
    assert tiny.engine().decode(added).startswith("<|im_end|>\n<|im_start|>user\non")
    assert server.log[1].call.messages[1].role == "assistant"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", [Fault.RATE_LIMIT, Fault.SERVER_ERROR, Fault.CUT_STREAM, Fault.MALFORMED_JSON])
async def test_what_may_pass_is_sent_again_until_something_was_delivered(fault, stream):
    async with world(server={"fault_script": (fault,)}) as (engine, server):
        try:
            reply = await ask(engine, [user("hi")], stream)
        except EngineUnavailable:
            assert stream, "a whole answer can always be asked for again"
            assert fault in (Fault.CUT_STREAM, Fault.MALFORMED_JSON)
            assert engine.stats.remembered == 0
            return
        assert len(server.log) == 2
        assert np.array_equal(reply.tokens.prompt_ids, server.log[1].tokens.prompt_ids)
        assert engine.stats.remembered == 1


async def test_leaving_drops_the_call_at_the_server():
    begun, forever = asyncio.Event(), asyncio.Event()

    async def slow(call, rng):
        begun.set()
        await forever.wait()

    async with world(slow) as (engine, server):
        task = asyncio.create_task(ask(engine, [user("hi")]))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            while server.stats.cancelled == 0:
                await asyncio.sleep(0)
        assert engine.stats.carried.in_flight == 0


async def test_leaving_a_stream_early_keeps_nothing():
    async with world(lambda call, rng: assistant("abc " * 50)) as (engine, _server):
        async with aclosing(asked_for(partial(engine.stream, ModelCall("", (user("hi"),))))) as events:
            async for _ in events:
                break
        assert engine.stats.carried.in_flight == 0
        assert engine.stats.remembered == 0


async def test_the_same_words_in_other_ids_stay_apart():
    """Two rollouts that heard the same are told apart by the very answer that each was given."""
    async with world(lambda call, rng: assistant("the abc thing is in the other"), options=KEEP) as (engine, server):
        one = await ask(engine, [user("hi")])
        server._player._voice._config = ScriptedConfig(tokens=True, seed=5)
        two = await ask(engine, [user("hi")])
        assert one.message == two.message
        assert not np.array_equal(one.tokens.completion_ids, two.tokens.completion_ids)
        for reply in (one, two, one):
            after = await ask(engine, [user("hi"), reply.message, user("more")])
            tape = whole(reply.tokens)
            assert np.array_equal(after.tokens.prompt_ids[: len(tape)], tape)


async def test_equal_messages_from_another_reader_continue_too():
    async with world() as (engine, _server):
        first = await ask(engine, [user("hi")])
        again = Message("assistant", tuple(part for part in first.message.parts))
        (call,) = again.tool_calls
        await ask(engine, [user("hi"), again, tool_result(call.id, "3")])
        assert engine.stats.extended == 1


async def test_what_was_forgotten_is_rendered_anew():
    async with world(remember_mb=0.001) as (engine, _server):
        one = await ask(engine, [user("one")])
        await ask(engine, [user("two")])
        assert engine.stats.forgotten == 1
        await ask(engine, [user("one"), one.message, tool_result(one.message.tool_calls[0].id, "3")])
        assert engine.stats.extended == 0
        assert engine.stats.remembered == 1


async def test_another_tool_list_is_another_render():
    async with world() as (engine, _server):
        first = await ask(engine, [user("hi")])
        (call,) = first.message.tool_calls
        await ask(engine, [user("hi"), first.message, tool_result(call.id, "3")], tools=())
        assert engine.stats.declined == {"tools_changed": 1}


async def test_images_are_refused_where_the_format_has_none_before_anything_is_sent():
    async with world() as (engine, server):
        with pytest.raises(EngineRefused, match="has no images"):
            await ask(engine, [Message("user", (Image("0" * 64, "image/png"),))])
        assert server.log == []


def test_the_address_is_needed():
    with pytest.raises(UsageError, match=r"engine\.relay\.base_url"):
        TokensEngine(TokensConfig(), RelayConfig(), tiny.pool())


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/"])
async def test_the_paths_lie_at_the_root_of_the_server(tail):
    async with ScriptedServer(ScriptedConfig(tokens=True, context_tokens=500), calls_twice, tiny.renderer()) as server:
        relay = RelayConfig(base_url=server.base_url + tail)
        for path in ("generate", "completions"):
            async with TokensEngine(TokensConfig(endpoint=path), relay, tiny.pool(), "m") as engine:
                await engine.probe()
        assert [entry.dialect for entry in server.log] == ["generate", "completions"]
