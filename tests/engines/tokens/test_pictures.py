"""Images beside ids: sent with their placeholders, widened by the server, on record as the model saw them."""

from contextlib import asynccontextmanager
from itertools import pairwise

import numpy as np
import orjson
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

import tiny
from ears import events_from
from rollwright.dialects import ImageStore
from rollwright.engines.config import RelayConfig, TokensConfig
from rollwright.engines.scripted import ScriptedConfig, ScriptedServer
from rollwright.engines.tokens import TokensEngine
from rollwright.engines.tokens.pictures import widens
from rollwright.renderers import load_engine
from rollwright.renderers.contract import RenderOptions, ThinkingPolicy
from rollwright.renderers.families.gemma4 import GEMMA4
from rollwright.renderers.families.qwen35 import QWEN3_6
from rollwright.renderers.pool import RendererPool
from rollwright.renderers.ranks import byte_vocabulary
from rollwright.renderers.render import TableRenderer
from rollwright.renderers.tape import Placeholder
from rollwright.wire import (
    EngineRefused,
    Image,
    Message,
    ModelCall,
    Sampling,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    WireError,
    assistant,
    reply_of,
    user,
)

VISION = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
GEMMA = (
    "<bos>", "<eos>", "<|turn>", "<turn|>", "<|think|>", "<|channel>", "<channel|>", "<|tool>", "<tool|>",
    "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>', "<|image|>",
)  # fmt: skip
FAMILIES = {"qwen3.6": (QWEN3_6, tiny.CONTROLS + VISION), "gemma4": (GEMMA4, GEMMA)}
LOOK = ToolSpec("look", "Looks.", {"type": "object", "properties": {"at": {"type": "integer"}}})
PIXELS = [bytes([value]) * 600 for value in range(3)]
families = pytest.mark.parametrize("family", FAMILIES)
both = pytest.mark.parametrize("stream", [False, True])


def renderer(family):
    table, controls = FAMILIES[family]
    options = RenderOptions(history=ThinkingPolicy.KEEP)
    return TableRenderer(table, load_engine(byte_vocabulary(controls, tiny.WORDS)), options)


def looks_twice(call, rng):
    if sum(message.role == "assistant" for message in call.messages) < 2:
        return assistant("", ToolCall("", "look", '{"at": 1}'))
    return assistant("the thing is there")


@asynccontextmanager
async def world(family, server=None, store=None, **settings):
    config = ScriptedConfig(**{"tokens": True, "context_tokens": 8192, **(server or {})})
    async with ScriptedServer(config, looks_twice, renderer(family)) as scripted:
        relay = RelayConfig(base_url=scripted.base_url)
        pool = RendererPool(lambda: renderer(family), size=1)
        async with TokensEngine(TokensConfig(**settings), relay, pool, "m", images=store) as engine:
            yield engine, scripted


async def ask(engine, messages, stream=False, **sampling):
    call = ModelCall("", tuple(messages), (LOOK,), sampling=Sampling(**sampling))
    if not stream:
        return await engine.complete(call)
    return reply_of(await events_from(engine, call))


async def talk(engine, count, stream=False):
    """Each result of the tool is a new picture; the first message has one as well."""
    first = engine.images.put(PIXELS[0], "image/png")
    messages, replies = [Message("user", (Text("see "), first, Text("this")))], []
    for at in range(count):
        replies.append(await ask(engine, messages, stream))
        messages.append(replies[-1].message)
        picture = engine.images.put(PIXELS[(at + 1) % 3], "image/png")
        calls = replies[-1].message.tool_calls
        if calls:
            messages.append(Message("tool", (ToolResult(calls[0].id, (Text("it is"), picture)),)))
        else:
            messages.append(user("more"))
    return replies


def whole(tokens):
    return np.concatenate([tokens.prompt_ids, tokens.completion_ids])


@families
@both
async def test_what_is_on_record_is_what_the_model_was_shown(family, stream):
    async with world(family) as (engine, server):
        replies = await talk(engine, 3, stream)
        assert engine.stats.extended == 2
    pad = renderer(family).image_ids[len(renderer(family).image_ids) // 2]
    for at, (reply, entry) in enumerate(zip(replies, server.log, strict=True)):
        sent, tokens = entry.call.extra["prompt_ids"], reply.tokens
        assert np.array_equal(tokens.prompt_ids, entry.tokens.prompt_ids)
        assert np.array_equal(tokens.completion_ids, entry.tokens.completion_ids)
        assert np.count_nonzero(sent == pad) == at + 1
        assert np.count_nonzero(tokens.prompt_ids == pad) > at + 1
        assert reply.usage.prompt_tokens == len(tokens.prompt_ids) > len(sent)
    for before, after in pairwise(replies):
        tape = whole(before.tokens)
        assert np.array_equal(after.tokens.prompt_ids[: len(tape)], tape)


@families
async def test_the_server_hears_the_pictures_in_their_turns(family):
    async with world(family) as (engine, server):
        await talk(engine, 2)
    heard = [[part.sha256 for part in said.parts if isinstance(part, Image)] for said in server.log[1].call.messages]
    store = ImageStore()
    hashes = [store.put(data, "image/png").sha256 for data in PIXELS]
    store.close()
    assert heard == [[hashes[0]], [], [hashes[1]]]


@both
async def test_routed_experts_are_counted_in_the_ids_that_the_model_was_shown(stream):
    server = {"routed_layers": 2, "routed_topk": 1}
    async with world("qwen3.6", server, routed_experts=True) as (engine, scripted):
        replies = await talk(engine, 3, stream)
    known = 0
    for reply, entry in zip(replies, scripted.log, strict=True):
        routing = reply.tokens.routing
        assert routing.start == known == entry.call.extra["routed_start"]
        known = len(whole(reply.tokens)) - 1
        assert len(routing.rows) == known - routing.start


async def test_an_answer_gets_the_room_that_is_left_beside_images():
    async with world("qwen3.6", {"context_tokens": 2000}) as (engine, server):
        picture = Message("user", (engine.images.put(PIXELS[1], "image/png"),))
        reply = await ask(engine, [picture])
        assert server.log[0].call.sampling.max_tokens == 2000 - len(reply.tokens.prompt_ids)
        await ask(engine, [picture], max_tokens=9)
        assert server.log[1].call.sampling.max_tokens == 9


async def test_the_completions_path_takes_no_images():
    async with world("qwen3.6", endpoint="completions") as (engine, server):
        with pytest.raises(EngineRefused, match=r"completions path .* takes no images"):
            await talk(engine, 1)
        assert server.log == []


async def test_an_image_that_nobody_has_is_refused_before_anything_is_sent():
    async with world("qwen3.6") as (engine, server):
        with pytest.raises(EngineRefused, match="cannot be sent: image 000000000000 is not in this store"):
            await ask(engine, [Message("user", (Image("0" * 64, "image/png"),))])
        assert server.log == []


async def test_images_that_were_moved_to_disk_are_sent_too():
    store = ImageStore(budget_bytes=10)
    try:
        async with world("qwen3.6", store=store) as (engine, server):
            await talk(engine, 2)
            assert len(server.log) == 2
    finally:
        store.close()


@pytest.mark.parametrize(
    ("told", "match"),
    [
        (lambda ids: None, "does not tell what ids images became"),
        (lambda ids: [*ids[:-1], 5], "was shown other ids than it was sent"),
        (lambda ids: ids[1:], "was shown other ids than it was sent"),
    ],
)
async def test_a_server_that_does_not_tell_what_it_showed_is_refused(told, match):
    async def answer(request):
        body = orjson.loads(await request.read())
        shown = told(body["token_ids"])
        choice = {"token_ids": [65], "logprobs": {"content": [{"logprob": -1.0}]}, "finish_reason": "length"}
        return web.json_response({"choices": [choice]} | ({} if shown is None else {"prompt_token_ids": shown}))

    app = web.Application()
    app.router.add_post("/inference/v1/generate", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        relay = RelayConfig(base_url=f"http://127.0.0.1:{runner.addresses[0][1]}")
        pool = RendererPool(lambda: renderer("qwen3.6"), size=1)
        async with TokensEngine(TokensConfig(context_tokens=4096), relay, pool, "m") as engine:
            with pytest.raises(EngineRefused, match=match):
                await talk(engine, 1)
    finally:
        await runner.cleanup()


async def test_the_scripted_server_wants_as_many_images_as_the_prompt_has_room_for():
    async with world("qwen3.6") as (engine, server):
        picture = engine.images.put(PIXELS[0], "image/png")
        seen = renderer("qwen3.6").render([Message("user", (picture,))])
        voice = server._player._voice
        assert len(voice.widen(seen.ids, [picture])) > len(seen)
        with pytest.raises(WireError, match="room for 1 images and 2 came"):
            voice.widen(seen.ids, [picture, picture])


words = st.lists(st.integers(0, 3), max_size=6)


@given(st.lists(st.tuples(words, st.integers(1, 5)), max_size=4), words, st.data())
def test_only_images_may_become_wider(parts, last, data):
    narrow, wide, places = [], [], []
    for text, width in parts:
        narrow += [*text, 9]
        wide += text + [9] * width
        places.append(Placeholder(len(narrow) - 1, len(narrow), 0, ""))
    narrow, wide = np.array(narrow + last, np.int32), np.array(wide + last, np.int32)
    if places:
        assert widens(wide, narrow, places)
    kept = np.flatnonzero(wide != 9)
    if places and len(kept):
        changed = wide.copy()
        changed[data.draw(st.sampled_from(kept.tolist()))] = 7
        assert not widens(changed, narrow, places)
