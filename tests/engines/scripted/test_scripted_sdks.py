"""The vendors' own SDKs believe that they talk to a provider."""

from __future__ import annotations

import contextlib
import json

import pytest

from rollwright.engines.scripted import Fault, ScriptedConfig, ScriptedServer
from rollwright.wire import Message, Text, ToolCall, assistant
from sdks import anthropic, openai

# The SDKs build their models on first use, for longer than a loop should wait; that is theirs to mend.
pytestmark = pytest.mark.blocks_loop

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ASK = [{"role": "user", "content": "two words"}]


def tool_user(call, rng):
    """Calls the tool once, then says what it got."""
    last = call.messages[-1]
    if any(part for part in last.parts if hasattr(part, "call_id")):
        return assistant(f"it was {last.parts[0].content[0].text}")
    if call.tools:
        return Message("assistant", (Text("let me see"), ToolCall("call_7", call.tools[0].name, '{"a": 41}')))
    return assistant(last.text)


@pytest.fixture
async def server():
    async with ScriptedServer(ScriptedConfig(chunk_chars=3), tool_user) as running:
        yield running


@pytest.fixture
async def oai(server):
    async with openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key="k", max_retries=0) as client:
        yield client


@pytest.fixture
async def claude(server):
    async with anthropic.AsyncAnthropic(base_url=server.base_url, api_key="k", max_retries=0) as client:
        yield client


async def test_openai_chat(oai):
    answer = await oai.chat.completions.create(model="m", messages=ASK)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("two words", "stop")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0


async def test_openai_chat_stream(oai):
    stream = await oai.chat.completions.create(
        model="m", messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == "two words"
    assert max(map(len, pieces)) == 3
    assert chunks[-1].usage.completion_tokens > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_chat_tools(oai, stream):
    tools = [{"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}]
    if stream:
        async with oai.chat.completions.stream(model="m", messages=ASK, tools=tools) as events:
            message = (await events.get_final_completion()).choices[0].message
    else:
        message = (await oai.chat.completions.create(model="m", messages=ASK, tools=tools)).choices[0].message
    called = message.tool_calls[0]
    assert (called.id, called.function.name, called.function.arguments) == ("call_7", "look", '{"a": 41}')
    assert message.content == "let me see"
    result = {"role": "tool", "tool_call_id": called.id, "content": "42"}
    told = message.model_dump(include={"role", "content"}) | {
        "tool_calls": [call.model_dump(include={"id", "type", "function"}) for call in message.tool_calls]
    }
    told["tool_calls"][0]["function"].pop("parsed_arguments", None)
    again = await oai.chat.completions.create(model="m", messages=[*ASK, told, result], tools=tools)
    assert again.choices[0].message.content == "it was 42"


async def test_openai_responses(oai):
    answer = await oai.responses.create(model="m", input="two words")
    assert answer.output_text == "two words"
    assert answer.status == "completed"
    assert answer.usage.output_tokens > 0


async def test_openai_responses_stream(oai):
    async with oai.responses.stream(model="m", input="two words") as events:
        pieces = [event.delta async for event in events if event.type == "response.output_text.delta"]
        final = await events.get_final_response()
    assert "".join(pieces) == final.output_text == "two words"
    assert len(pieces) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_responses_tools(oai, stream):
    tools = [{"type": "function", "name": "look", "parameters": PARAMETERS, "strict": False}]
    if stream:
        async with oai.responses.stream(model="m", input=ASK, tools=tools) as events:
            async for _ in events:
                pass
            answer = await events.get_final_response()
    else:
        answer = await oai.responses.create(model="m", input=ASK, tools=tools)
    called = next(item for item in answer.output if item.type == "function_call")
    assert (called.call_id, called.name, called.arguments) == ("call_7", "look", '{"a": 41}')
    given = {"type": "function_call", "call_id": called.call_id, "name": called.name, "arguments": called.arguments}
    result = {"type": "function_call_output", "call_id": called.call_id, "output": "42"}
    again = await oai.responses.create(model="m", input=[*ASK, given, result], tools=tools)
    assert again.output_text == "it was 42"


async def test_anthropic_messages(claude):
    answer = await claude.messages.create(model="m", max_tokens=100, messages=ASK)
    assert (answer.content[0].text, answer.stop_reason) == ("two words", "end_turn")
    assert answer.usage.output_tokens > 0
    cut = await claude.messages.create(model="m", max_tokens=1, messages=ASK)
    assert cut.stop_reason == "max_tokens"
    assert "two words".startswith(cut.content[0].text)


async def test_anthropic_messages_stream(claude):
    async with claude.messages.stream(model="m", max_tokens=100, messages=ASK) as stream:
        pieces = [piece async for piece in stream.text_stream]
        final = await stream.get_final_message()
    assert "".join(pieces) == final.content[0].text == "two words"
    assert len(pieces) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_tools(claude, stream):
    asked = {"model": "m", "max_tokens": 100, "tools": [{"name": "look", "input_schema": PARAMETERS}]}
    if stream:
        async with claude.messages.stream(**asked, messages=ASK) as events:
            answer = await events.get_final_message()
    else:
        answer = await claude.messages.create(**asked, messages=ASK)
    called = answer.content[1]
    assert (answer.stop_reason, called.id, called.name, called.input) == ("tool_use", "call_7", "look", {"a": 41})
    told = {"role": "assistant", "content": [block.model_dump(exclude_unset=True) for block in answer.content]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": called.id, "content": "42"}]}
    again = await claude.messages.create(**asked, messages=[*ASK, json.loads(json.dumps(told)), result])
    assert again.content[0].text == "it was 42"


@contextlib.asynccontextmanager
async def both_sdks(config, retries=0):
    async with (
        ScriptedServer(config) as server,
        openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key="k", max_retries=retries) as oai,
        anthropic.AsyncAnthropic(base_url=server.base_url, api_key="k", max_retries=retries) as claude,
    ):
        yield server, oai, claude


async def test_the_sdks_know_our_errors():
    config = ScriptedConfig(policy="echo", fault_script=(Fault.RATE_LIMIT, Fault.SERVER_ERROR) * 2)
    async with both_sdks(config) as (_, oai, claude):
        for kind in ("RateLimitError", "InternalServerError"):
            with pytest.raises(getattr(openai, kind), match="as the script says"):
                await oai.chat.completions.create(model="m", messages=ASK)
        for kind in ("RateLimitError", "InternalServerError"):
            with pytest.raises(getattr(anthropic, kind), match="as the script says"):
                await claude.messages.create(model="m", max_tokens=9, messages=ASK)
        assert [model.id async for model in await oai.models.list()] == ["scripted"]
        assert [model.id async for model in await claude.models.list()] == ["scripted"]


async def test_the_sdks_wait_and_come_back():
    config = ScriptedConfig(policy="echo", fault_script=(Fault.RATE_LIMIT,) * 2, retry_after_s=0.001)
    async with both_sdks(config, retries=5) as (server, oai, claude):
        answer = await oai.chat.completions.create(model="m", messages=ASK)
        assert (answer.choices[0].message.content, server.stats.received) == ("two words", 3)
        server.reset()
        message = await claude.messages.create(model="m", max_tokens=9, messages=ASK)
        assert (message.content[0].text, server.stats.received) == ("two words", 3)
