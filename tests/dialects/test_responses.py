"""The Responses API as others write it."""

from __future__ import annotations

import copy
import json

import msgspec
import pytest

from dialects.cases import IMAGES, plain, read_cut
from rollwright.dialects import DIALECTS
from rollwright.wire import (
    EngineUnavailable,
    Finish,
    Message,
    ModelCall,
    ModelReply,
    Reasoning,
    Text,
    ToolCall,
    ToolSpec,
    Usage,
    WireError,
    assistant,
    events_of,
    reply_of,
    system,
    tool_result,
    user,
)

RESPONSES = DIALECTS["responses"]


def read(**fields) -> ModelCall:
    return RESPONSES.read_request(json.dumps({"model": "m", "input": [], **fields}).encode(), IMAGES)


def events(*payloads) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(payload).encode() for payload in payloads)


def test_plain_text_is_what_the_user_said():
    assert read(input="hi").messages == (user("hi"),)


def test_what_the_model_said_in_one_go_is_one_message():
    summary = [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]
    text = {"type": "output_text", "text": "t", "annotations": []}
    items = [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"type": "reasoning", "id": "rs", "summary": summary, "encrypted_content": "E", "content": None},
        {"type": "message", "role": "assistant", "id": "x", "content": [text]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{ }", "id": None, "status": "completed"},
        {"type": "function_call_output", "call_id": "1", "output": "out"},
    ]
    spoken = Message("assistant", (Reasoning("a\n\nb", "E"), Text("t"), ToolCall("1", "f", "{ }")))
    call = read(input=items, instructions="i")
    assert call.messages == (system("i"), system("d"), user("u"), spoken, tool_result("1", "out"))


def test_signed_reasoning_goes_back_as_a_summary_and_open_reasoning_as_itself():
    spoken = Message("assistant", (Reasoning("a", "E"), Reasoning("b")))
    items = json.loads(RESPONSES.write_request(ModelCall("m", (spoken,)), IMAGES))["input"]
    assert items[0]["summary"] == [{"type": "summary_text", "text": "a"}]
    assert items[0]["encrypted_content"] == "E"
    assert "content" not in items[0]
    assert items[1]["content"] == [{"type": "reasoning_text", "text": "b"}]


def test_a_reference_to_an_earlier_response_is_refused():
    with pytest.raises(WireError, match="whole conversation"):
        read(previous_response_id="resp_1")
    assert read(previous_response_id=None).extra == {}


def test_items_that_we_do_not_know_are_refused_by_name():
    with pytest.raises(WireError, match="hologram_call"):
        read(input=[{"type": "hologram_call", "call_id": "1"}])
    with pytest.raises(WireError, match="send it whole"):
        read(input=[{"type": "item_reference", "id": "msg_1"}])
    with pytest.raises(WireError, match="role 'robot'"):
        read(input=[{"role": "robot", "content": "x"}])


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call", "name": "f", "arguments": ""},
        {"type": "function_call", "call_id": "1", "arguments": ""},
        {"type": "function_call_output", "output": ""},
    ],
)
def test_a_call_without_its_name_or_id_is_refused(item):
    with pytest.raises(WireError, match="needs a"):
        read(input=[item])


def test_other_tools_and_unknown_fields_pass_through():
    tools = [
        {"type": "web_search"},
        {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False},
    ]
    call = read(tools=tools, include=["reasoning.encrypted_content"], store=False)
    assert call.tools == (ToolSpec("f", "", {"type": "object"}),)
    body = json.loads(RESPONSES.write_request(call, IMAGES))
    assert [tool["type"] for tool in body["tools"]] == ["web_search", "function"]
    assert (body["include"], body["store"]) == (["reasoning.encrypted_content"], False)


NAMESPACE = {
    "type": "namespace",
    "name": "mcp__vault",
    "description": "d",
    "tools": [
        {"type": "function", "name": "open", "description": "o", "strict": False, "parameters": {"type": "object"}},
        {"type": "custom", "name": "say"},
    ],
}
ECHOES = [
    {"type": "function_call", "call_id": "1", "namespace": "mcp__vault", "name": "open", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "a feather"},
]


def test_a_tool_in_a_namespace_has_one_name_for_every_engine():
    call = read(tools=[NAMESPACE, {"type": "function", "name": "f"}], input=ECHOES)
    assert [tool.name for tool in call.tools] == ["mcp__vault__open", "mcp__vault__say", "f"]
    assert call.messages[0] == assistant("", ToolCall("1", "mcp__vault__open", "{}"))
    there = json.loads(DIALECTS["chat"].write_request(call, IMAGES))
    assert [tool["function"]["name"] for tool in there["tools"]] == ["mcp__vault__open", "mcp__vault__say", "f"]
    assert there["messages"][0]["tool_calls"][0]["function"]["name"] == "mcp__vault__open"
    # An engine of this dialect is told as the program told it, also where messages were put in its place.
    assert json.loads(RESPONSES.write_request(call, IMAGES))["tools"][0] == NAMESPACE
    rewritten = msgspec.structs.replace(call, messages=(user("new"), *map(copy.deepcopy, call.messages)))
    assert json.loads(RESPONSES.write_request(rewritten, IMAGES))["input"][1] == ECHOES[0]


def test_a_call_of_a_tool_in_a_namespace_is_told_in_its_namespace():
    """Streamed and whole, by whoever answers; a name that is in no namespace stays as it is."""
    call = read(tools=[NAMESPACE, {"type": "function", "name": "f"}])
    calls = [
        ToolCall("1", "mcp__vault__open", "{}"),
        ToolCall("2", "mcp__vault__say", '{"input":"x"}'),
        ToolCall("3", "f", "{}"),
    ]
    reply = ModelReply(assistant("", *calls), Finish.TOOL_CALLS, model="m")
    whole = RESPONSES.write_reply(reply, call)
    items = json.loads(whole)["output"]
    assert [(item.get("namespace"), item["name"]) for item in items] == [
        ("mcp__vault", "open"),
        ("mcp__vault", "say"),
        (None, "f"),
    ]
    writer = RESPONSES.stream_writer(call)
    stream = writer.open() + b"".join(map(writer.write, events_of(reply)))
    told = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: ")]
    shown = [event["item"] for event in told if event["type"].startswith("response.output_item.")]
    assert [(item.get("namespace"), item["name"]) for item in shown] == [
        pair for item in items for pair in [(item.get("namespace"), item["name"])] * 2
    ]
    assert RESPONSES.read_reply(whole).message == reply_of(read_cut("responses", stream, [])).message == reply.message


def test_a_namespace_with_tools_that_the_provider_runs_is_the_providers():
    mixed = {**NAMESPACE, "tools": [*NAMESPACE["tools"], {"type": "web_search"}]}
    call = read(tools=[mixed])
    assert call.tools == ()
    assert json.loads(RESPONSES.write_request(call, IMAGES))["tools"] == [mixed]


@pytest.mark.parametrize(
    ("status", "details", "finish"),
    [
        ("completed", None, Finish.STOP),
        ("incomplete", {"reason": "max_output_tokens"}, Finish.LENGTH),
        ("incomplete", {"reason": "content_filter"}, Finish.REFUSAL),
        ("incomplete", None, Finish.LENGTH),
    ],
)
def test_finish_follows_from_the_status(status, details, finish):
    body = {"output": [], "status": status, "incomplete_details": details, "model": "m"}
    assert RESPONSES.read_reply(json.dumps(body).encode()).finish is finish
    stream = events({"type": f"response.{status}", "response": body})
    assert reply_of(read_cut("responses", stream, [])).finish is finish


def test_an_answer_that_is_still_being_made_is_no_answer():
    with pytest.raises(WireError, match="'queued'"):
        RESPONSES.read_reply(b'{"output": [], "status": "queued"}')


def test_an_engine_that_failed_says_why():
    failed = {"status": "failed", "output": [], "error": {"code": "server_error", "message": "boom"}}
    with pytest.raises(EngineUnavailable, match="boom"):
        RESPONSES.read_reply(json.dumps(failed).encode())
    with pytest.raises(EngineUnavailable, match="boom"):
        read_cut("responses", events({"type": "response.failed", "response": failed}), [])
    with pytest.raises(EngineUnavailable, match="boom"):
        read_cut("responses", events({"type": "error", "code": None, "message": "boom", "param": None}), [])
    with pytest.raises(EngineUnavailable, match="gone"):
        read_cut("responses", RESPONSES.stream_writer(ModelCall("m", ())).error("gone"), [])


def test_a_refusal_is_text_and_a_finish():
    item = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    whole = {"status": "completed", "output": [item], "model": "m"}
    reply = RESPONSES.read_reply(json.dumps(whole).encode())
    assert (reply.message.text, reply.finish) == ("No.", Finish.REFUSAL)
    stream = events(
        {"type": "response.refusal.delta", "delta": "No."}, {"type": "response.completed", "response": whole}
    )
    assert plain(reply_of(read_cut("responses", stream, []))) == plain(reply)


def test_a_server_that_sends_only_whole_items_is_understood():
    items = [
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    ]
    done = [{"type": "response.output_item.done", "output_index": at, "item": item} for at, item in enumerate(items)]
    whole = {"status": "completed", "output": items, "usage": {"input_tokens": 1, "output_tokens": 2}, "model": "m"}
    reply = reply_of(read_cut("responses", events(*done, {"type": "response.completed", "response": whole}), []))
    assert plain(reply) == plain(RESPONSES.read_reply(json.dumps(whole).encode()))
    assert reply.message == Message("assistant", (Reasoning("hm"), *assistant("hi", ToolCall("1", "f", "{}")).parts))
    assert (reply.finish, reply.usage) == (Finish.TOOL_CALLS, Usage(1, 2))


def test_summaries_of_many_parts_read_the_same_in_a_stream():
    parts = [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]
    item = {"type": "reasoning", "id": "r", "summary": parts, "encrypted_content": "E"}
    whole = {"status": "completed", "output": [item], "model": "m"}
    stream = events(
        {"type": "response.reasoning_summary_part.added", "summary_index": 0},
        {"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": "a"},
        {"type": "response.reasoning_summary_part.added", "summary_index": 1},
        {"type": "response.reasoning_summary_text.delta", "summary_index": 1, "delta": "b"},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    )
    assert plain(reply_of(read_cut("responses", stream, []))) == plain(RESPONSES.read_reply(json.dumps(whole).encode()))
