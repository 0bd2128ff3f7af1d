"""The official SDKs, against a small server that plays a reply through our writers: they accept what we write, and we
read what they write."""

from __future__ import annotations

import base64
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from rollwright.dialects import DIALECTS, ImageStore, write_models
from rollwright.dialects.sse import SseReader
from rollwright.wire import (
    Finish,
    Image,
    Message,
    ModelCall,
    ModelReply,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    WireError,
    events_of,
)
from sdks import anthropic, openai, pydantic

# The SDKs build their schemas at first use, on the loop.
pytestmark = pytest.mark.blocks_loop

TALK = ModelReply(
    Message("assistant", (Reasoning("hm"), Text("Hello, \u2028 wörld"))), Finish.STOP, Usage(7, 3), model="served"
)
TOOLS = ModelReply(
    Message(
        "assistant",
        (
            Text("Looking."),
            ToolCall("call_1", "look", '{"where": "left" }'),
            ToolCall("call_2", "look", '{"where": "right", "n": [1, 2]}'),
        ),
    ),
    Finish.TOOL_CALLS,
    Usage(11, 5),
    policy_version=2,
    model="served",
)
PIXEL = base64.b64encode(b"pixels").decode()
SCHEMA = {"type": "object", "properties": {"where": {"type": "string"}}}


class Player:
    """Answers every request with one reply, and keeps the calls it read."""

    def __init__(self, reply: ModelReply | Exception) -> None:
        self.reply = reply
        self.calls: list[ModelCall] = []
        self.keys: list[str] = []
        self.images = ImageStore()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        dialect = next(dialect for dialect in DIALECTS.values() if dialect.path == request.path)
        self.keys.append(dialect.read_key(request.headers))
        call = dialect.read_request(await request.read(), self.images)
        self.calls.append(call)
        if isinstance(self.reply, Exception) and not call.stream:
            body = dialect.write_error(400, str(self.reply))
            return web.Response(body=body, status=400, content_type="application/json")
        if not call.stream:
            return web.Response(body=dialect.write_reply(self.reply, call), content_type="application/json")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        writer = dialect.stream_writer(call)
        await response.write(writer.open())
        if isinstance(self.reply, Exception):
            await response.write(writer.error(str(self.reply)))
        else:
            for event in events_of(self.reply):
                await response.write(writer.write(event))
        return response

    async def models(self, request: web.Request) -> web.Response:
        return web.Response(body=write_models(["served"]), content_type="application/json")


@asynccontextmanager
async def playing(reply):
    player = Player(reply)
    app = web.Application()
    app.router.add_get("/v1/models", player.models)
    for dialect in DIALECTS.values():
        app.router.add_post(dialect.path, player.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with (
            openai.AsyncOpenAI(base_url=f"{host}/v1", api_key="k1", max_retries=0, timeout=20) as of_openai,
            anthropic.AsyncAnthropic(base_url=host, api_key="k2", max_retries=0, timeout=20) as of_anthropic,
        ):
            yield player, of_openai, of_anthropic
    finally:
        await runner.cleanup()


CHAT_TOOLS = [{"type": "function", "function": {"name": "look", "description": "d", "parameters": SCHEMA}}]
CHAT = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [
            {"type": "text", "text": "What?"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        ]},
    ],
    "tools": CHAT_TOOLS,
    "tool_choice": "auto",
    "max_completion_tokens": 50,
}  # fmt: skip


def heard(player: Player) -> ModelCall:
    call = player.calls[-1]
    assert [message.role for message in call.messages] == ["system", "user"]
    assert call.messages[0].text == "Be brief."
    assert call.messages[1].parts[0] == Text("What?")
    assert isinstance(call.messages[1].parts[1], Image)
    assert player.images.get(call.messages[1].parts[1]) == b"pixels"
    assert call.tools[0].name == "look"
    assert call.tools[0].parameters["properties"] == SCHEMA["properties"]
    assert call.sampling.max_tokens == 50
    return call


async def test_chat_with_tools():
    async with playing(TOOLS) as (player, client, _):
        reply = await client.chat.completions.create(**CHAT)
    assert heard(player).extra["tool_choice"] == "auto"
    assert player.keys == ["k1"]
    message = reply.choices[0].message
    assert message.content == "Looking."
    assert [call.function.arguments for call in message.tool_calls] == [c.arguments for c in TOOLS.message.tool_calls]
    assert reply.choices[0].finish_reason == "tool_calls"
    assert (reply.usage.prompt_tokens, reply.usage.total_tokens, reply.model) == (11, 16, "served")


async def test_chat_streams_tools_to_the_accumulating_client():
    async with (
        playing(TOOLS) as (player, client, _),
        client.chat.completions.stream(**CHAT, stream_options={"include_usage": True}) as stream,
    ):
        done = await stream.get_final_completion()
        assert heard(player).stream
    assert done.choices[0].message.content == "Looking."
    assert [c.function.arguments for c in done.choices[0].message.tool_calls] == [
        c.arguments for c in TOOLS.message.tool_calls
    ]
    assert [c.id for c in done.choices[0].message.tool_calls] == ["call_1", "call_2"]
    assert done.usage.completion_tokens == 5


async def test_chat_sends_usage_only_to_those_who_ask():
    async with playing(TALK) as (_, client, _a):
        silent = [chunk async for chunk in await client.chat.completions.create(**CHAT, stream=True)]
        options = {"include_usage": True}
        asked = [
            chunk async for chunk in await client.chat.completions.create(**CHAT, stream=True, stream_options=options)
        ]
    assert all(chunk.choices for chunk in silent)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in silent) == TALK.message.text
    assert [getattr(chunk.choices[0].delta, "reasoning_content", "") or "" for chunk in silent][1] == "hm"
    assert asked[-1].choices == []
    assert asked[-1].usage.total_tokens == 10


RESPONSES = {
    "model": "m",
    "instructions": "Be brief.",
    "input": [{"role": "user", "content": [
        {"type": "input_text", "text": "What?"},
        {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PIXEL}"},
    ]}],
    "tools": [{"type": "function", "name": "look", "description": "d", "parameters": SCHEMA, "strict": False}],
    "max_output_tokens": 50,
}  # fmt: skip


async def test_responses_with_tools():
    async with playing(TOOLS) as (player, client, _):
        reply = await client.responses.create(**RESPONSES, reasoning={"effort": "low"})
    assert heard(player).extra == {"reasoning": {"effort": "low"}}
    calls = [item for item in reply.output if item.type == "function_call"]
    assert [(c.call_id, c.name, c.arguments) for c in calls] == [
        (c.id, c.name, c.arguments) for c in TOOLS.message.tool_calls
    ]
    assert (reply.output_text, reply.status, reply.usage.input_tokens) == ("Looking.", "completed", 11)


@pytest.mark.parametrize("played", [TALK, TOOLS])
async def test_responses_stream_to_the_accumulating_client(played):
    async with playing(played) as (player, client, _), client.responses.stream(**RESPONSES) as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        done = await stream.get_final_response()
        assert heard(player).stream
    assert "".join(deltas) == done.output_text == played.message.text
    calls = [item for item in done.output if item.type == "function_call"]
    assert [(c.call_id, c.arguments) for c in calls] == [(c.id, c.arguments) for c in played.message.tool_calls]
    assert done.usage.output_tokens == played.usage.completion_tokens


async def test_an_answer_goes_back_as_the_openai_sdk_echoes_it():
    async with playing(TOOLS) as (player, client, _):
        reply = await client.responses.create(**RESPONSES)
        outputs = [{"type": "function_call_output", "call_id": "call_1", "output": "a wall"}]
        await client.responses.create(**{**RESPONSES, "input": [*RESPONSES["input"], *reply.output, *outputs]})
    assert player.calls[1].messages[2] == TOOLS.message
    assert player.calls[1].messages[3].parts == (ToolResult("call_1", (Text("a wall"),)),)


MESSAGES = {
    "model": "m",
    "max_tokens": 50,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": [
        {"type": "text", "text": "What?"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
    ]}],
    "tools": [{"name": "look", "description": "d", "input_schema": SCHEMA}],
}  # fmt: skip


async def test_messages_with_tools():
    async with playing(TOOLS) as (player, _, client):
        reply = await client.messages.create(**MESSAGES, metadata={"user_id": "u"})
    assert heard(player).extra == {"metadata": {"user_id": "u"}}
    assert player.keys == ["k2"]
    assert [block.input for block in reply.content[1:]] == [{"where": "left"}, {"where": "right", "n": [1, 2]}]
    assert (reply.stop_reason, reply.usage.input_tokens, reply.usage.output_tokens) == ("tool_use", 11, 5)


@pytest.mark.parametrize("played", [TALK, TOOLS])
async def test_messages_stream_to_the_accumulating_client(played):
    async with playing(played) as (player, _, client), client.messages.stream(**MESSAGES) as stream:
        texts = [text async for text in stream.text_stream]
        done = await stream.get_final_message()
        assert heard(player).stream
    assert "".join(texts) == played.message.text
    calls = [block for block in done.content if block.type == "tool_use"]
    assert [call.id for call in calls] == [call.id for call in played.message.tool_calls]
    assert all(call.input["where"] for call in calls)
    assert "".join(b.thinking for b in done.content if b.type == "thinking") == played.message.reasoning
    assert done.usage.input_tokens == played.usage.prompt_tokens


async def test_an_answer_goes_back_as_the_anthropic_sdk_echoes_it():
    async with playing(TOOLS) as (player, _, client):
        reply = await client.messages.create(**MESSAGES)
        echo = {"role": "assistant", "content": reply.content}
        results = [
            {"type": "tool_result", "tool_use_id": "call_1", "content": "a wall"},
            {
                "type": "tool_result",
                "tool_use_id": "call_2",
                "is_error": True,
                "content": [{"type": "text", "text": "no"}],
            },
            {"type": "text", "text": "Go on."},
        ]
        messages = [*MESSAGES["messages"], echo, {"role": "user", "content": results}]
        await client.messages.create(**{**MESSAGES, "messages": messages})
    said = player.calls[1].messages[2:]
    assert [message.role for message in said] == ["assistant", "tool", "tool", "user"]
    assert [call.id for call in said[0].tool_calls] == ["call_1", "call_2"]
    assert said[2].parts == (ToolResult("call_2", (Text("no"),), is_error=True),)


async def test_errors_have_the_shape_that_each_sdk_reads():
    async with playing(WireError("no such luck")) as (_, of_openai, of_anthropic):
        with pytest.raises(openai.BadRequestError, match="no such luck"):
            await of_openai.chat.completions.create(**CHAT)
        with pytest.raises(openai.BadRequestError, match="no such luck"):
            await of_openai.responses.create(**RESPONSES)
        with pytest.raises(anthropic.BadRequestError, match="no such luck"):
            await of_anthropic.messages.create(**MESSAGES)


async def test_errors_inside_a_stream_reach_the_caller():
    async with playing(WireError("no such luck")) as (_, of_openai, of_anthropic):
        stream = await of_openai.chat.completions.create(**CHAT, stream=True)
        with pytest.raises(openai.APIError, match="no such luck"):
            [chunk async for chunk in stream]
        events = [event async for event in await of_openai.responses.create(**RESPONSES, stream=True)]
        assert events[-1].response.error.message == "no such luck"
        stream = await of_anthropic.messages.create(**MESSAGES, stream=True)
        with pytest.raises(anthropic.APIStatusError, match="no such luck"):
            [event async for event in stream]


async def test_models_are_listed():
    async with playing(TALK) as (_, client, _a):
        assert [model.id async for model in client.models.list()] == ["served"]


def strict_types(name):
    """Of a whole answer, and of one event of a stream."""
    chat, responses, messages = openai.types.chat, openai.types.responses, anthropic.types
    return {
        "chat": (chat.ChatCompletion, chat.ChatCompletionChunk),
        "responses": (responses.Response, responses.ResponseStreamEvent),
        "messages": (messages.Message, messages.RawMessageStreamEvent),
    }[name]


@pytest.mark.parametrize("reply", [TALK, TOOLS])
@pytest.mark.parametrize("name", DIALECTS)
def test_what_we_write_passes_the_strict_types_of_the_sdks(name, reply):
    """The SDKs themselves build their objects without validation; here it is asked for."""
    dialect, (whole, piece) = DIALECTS[name], strict_types(name)
    call = ModelCall("m", (), extra={"stream_options": {"include_usage": True}})
    whole.model_validate_json(dialect.write_reply(reply, call))
    writer = dialect.stream_writer(call)
    body = writer.open() + b"".join([writer.write(event) for event in events_of(reply)])
    payloads = [payload for payload in SseReader().feed(body) if payload != b"[DONE]"]
    adapter = pydantic.TypeAdapter(piece)
    assert len([adapter.validate_json(payload) for payload in payloads]) > 4
