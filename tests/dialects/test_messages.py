"""Anthropic messages as others write them."""

from __future__ import annotations

import json

import pytest

from dialects.cases import IMAGES, plain, read_cut
from rollwright.dialects import DIALECTS
from rollwright.dialects.messages import write_token_count
from rollwright.wire import (
    EngineUnavailable,
    Finish,
    Message,
    ModelCall,
    ModelReply,
    Reasoning,
    ReasoningDelta,
    Text,
    ToolCall,
    ToolCallDelta,
    Usage,
    WireError,
    assistant,
    events_of,
    reply_of,
    system,
    tool_result,
    user,
)

MESSAGES = DIALECTS["messages"]


def read(**fields) -> ModelCall:
    return MESSAGES.read_request(json.dumps({"model": "m", "max_tokens": 9, "messages": [], **fields}).encode(), IMAGES)


def written(*messages: Message, **fields) -> dict:
    return json.loads(MESSAGES.write_request(ModelCall("m", messages, **fields), IMAGES))


def events(*payloads) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (p["type"].encode(), json.dumps(p).encode()) for p in payloads)


def test_the_arguments_of_a_call_keep_their_source_text():
    block = b'{"type":"tool_use","id":"1","name":"f","input":{"b" :1.0,\n "a":"\\u00fc"}}'
    body = b'{"model":"m","messages":[{"role":"assistant","content":[%b]}]}' % block
    call = MESSAGES.read_request(body, IMAGES)
    assert call.messages[0].tool_calls[0].arguments == '{"b" :1.0,\n "a":"\\u00fc"}'
    assert b'{"b" :1.0,\n "a":"\\u00fc"}' in MESSAGES.write_request(call, IMAGES)


@pytest.mark.parametrize("text", ['{"a": 1', "[1]", "not json", '{"a": NaN}', '"x"', "{}}", '{"x": "\\ud800"}'])
def test_arguments_that_are_no_object_survive_as_text(text):
    call = ModelCall("m", (assistant("", ToolCall("1", "f", text)),))
    assert MESSAGES.read_request(MESSAGES.write_request(call, IMAGES), IMAGES).messages == call.messages


def test_no_arguments_are_an_empty_object():
    assert written(assistant("", ToolCall("1", "f", "")))["messages"][0]["content"][0]["input"] == {}


def test_an_input_that_is_no_object_is_refused():
    block = {"type": "tool_use", "id": "1", "name": "f", "input": [1]}
    with pytest.raises(WireError, match="not a JSON object"):
        read(messages=[{"role": "assistant", "content": [block]}])


@pytest.mark.parametrize(
    ("role", "block"),
    [
        ("user", {"type": "tool_use", "id": "1", "name": "f", "input": {}}),
        ("user", {"type": "thinking", "thinking": "x", "signature": ""}),
        ("assistant", {"type": "tool_result", "tool_use_id": "1"}),
        ("system", {"type": "tool_result", "tool_use_id": "1"}),
    ],
)
def test_nobody_says_what_is_not_theirs_to_say(role, block):
    with pytest.raises(WireError, match=f"{role}.*cannot hold a '{block['type']}'"):
        read(messages=[{"role": role, "content": [block]}])


def test_the_answers_to_parallel_calls_go_into_one_user_message():
    calls = assistant("", ToolCall("1", "f", "{}"), ToolCall("2", "f", "{}"))
    body = written(
        user("go"), calls, tool_result("1", "a"), tool_result("2", "b", is_error=True), user("and?"), user("!")
    )
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user", "user"]
    blocks = body["messages"][2]["content"]
    assert [block["type"] for block in blocks] == ["tool_result", "tool_result", "text"]
    assert blocks[1]["is_error"] is True


def test_the_first_system_message_is_the_system_and_later_ones_stay_in_place():
    body = written(system("a"), user("b"), system("c"))
    assert body["system"] == "a"
    assert [message["role"] for message in body["messages"]] == ["user", "system"]


def test_a_limit_is_always_sent():
    assert written(user("x"))["max_tokens"] == 8192


def test_server_tools_and_unknown_fields_pass_through():
    tools = [{"type": "web_search_20250305", "name": "web_search"}, {"name": "f", "input_schema": {"type": "object"}}]
    call = read(tools=tools, thinking={"type": "enabled", "budget_tokens": 1024}, top_k=5)
    assert [tool.name for tool in call.tools] == ["f"]
    body = json.loads(MESSAGES.write_request(call, IMAGES))
    assert body["tools"] == tools
    assert (body["thinking"], body["top_k"]) == ({"type": "enabled", "budget_tokens": 1024}, 5)


def test_an_image_by_address_is_refused():
    block = {"type": "image", "source": {"type": "url", "url": "https://example.org/x.png"}}
    with pytest.raises(WireError, match="base64"):
        read(messages=[{"role": "user", "content": [block]}])


THOUGHT = Message("assistant", (Reasoning("", "redacted_thinking:abc"), Text("x"), Reasoning("hm", "sig"), Text("y")))


def test_hidden_and_signed_thinking_go_back_unchanged():
    blocks = written(THOUGHT)["messages"][0]["content"]
    assert blocks[0] == {"type": "redacted_thinking", "data": "abc"}
    assert blocks[2] == {"type": "thinking", "thinking": "hm", "signature": "sig"}
    reply = ModelReply(THOUGHT, Finish.STOP, model="m")
    writer = MESSAGES.stream_writer(ModelCall("m", ()))
    body = writer.open() + b"".join(map(writer.write, events_of(reply)))
    assert plain(reply_of(read_cut("messages", body, []))) == plain(reply)


def test_a_signature_ends_its_block():
    writer = MESSAGES.stream_writer(ModelCall("m", ()))
    body = b"".join(writer.write(ReasoningDelta(text, sign)) for text, sign in [("a", ""), ("", "s1"), ("b", "s2")])
    assert body.count(b'"content_block_start"') == body.count(b'"content_block_stop"') == 2


def test_a_stream_as_the_provider_sends_it():
    usage = {"input_tokens": 10, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 1, "output_tokens": 1}
    body = events(
        {"type": "message_start", "message": {"id": "x", "model": "claude", "content": [], "usage": usage}},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": {}}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "1", "name": "f", "input": {}},
        },
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": ""}},
        {"type": "content_block_stop", "index": 1},
        {
            "type": "content_block_start",
            "index": 2,
            "content_block": {"type": "tool_use", "id": "2", "name": "g", "input": {}},
        },
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"a":'}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": " 1}"}},
        {"type": "content_block_stop", "index": 2},
        {"type": "some_new_event", "what": 3},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    )
    reply = reply_of(read_cut("messages", body, []))
    assert reply.message.parts == (Text("Hi"), ToolCall("1", "f", "{}"), ToolCall("2", "g", '{"a": 1}'))
    assert (reply.finish, reply.usage, reply.model) == (Finish.TOOL_CALLS, Usage(16, 7), "claude")


def test_an_error_event_ends_the_stream():
    with pytest.raises(EngineUnavailable, match="Overloaded"):
        read_cut(
            "messages", events({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}), []
        )
    with pytest.raises(EngineUnavailable, match="gone"):
        read_cut("messages", MESSAGES.stream_writer(ModelCall("m", ())).error("gone"), [])


def test_blocks_that_we_do_not_know_are_refused_by_name():
    block = {"type": "server_tool_use", "id": "1", "name": "web", "input": {}}
    with pytest.raises(WireError, match="server_tool_use"):
        read_cut("messages", events({"type": "content_block_start", "index": 0, "content_block": block}), [])
    with pytest.raises(WireError, match="server_tool_use"):
        MESSAGES.read_reply(json.dumps({"content": [block], "stop_reason": "end_turn"}).encode())


def test_a_piece_after_the_end_of_a_call_cannot_be_told():
    writer = MESSAGES.stream_writer(ModelCall("m", ()))
    writer.write(ToolCallDelta(0, "{}", "1", "f"))
    writer.write(ToolCallDelta(1, "{", "2", "g"))
    with pytest.raises(WireError, match="tool call 0 goes on"):
        writer.write(ToolCallDelta(0, " "))


def test_tokens_are_counted_in_the_shape_of_the_api():
    assert json.loads(write_token_count(12)) == {"input_tokens": 12}
