"""What we do not know reaches an engine of the same dialect as it was written, and no engine of another."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.cases import IMAGES, read_cut
from rollwright.dialects import DIALECTS
from rollwright.wire import (
    Finish,
    Message,
    ModelCall,
    ModelReply,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    WireError,
    assistant,
    events_of,
    reply_of,
    system,
    tool_result,
    user,
)

RESPONSES = DIALECTS["responses"]
CACHED = {"cache_control": {"type": "ephemeral"}}
BODIES = {
    "chat": {
        "model": "m",
        "messages": [
            {"role": "system", "content": "s", "name": "sys"},
            {"role": "user", "content": [{"type": "text", "text": "hi", "x": [1, {"y": None}]}], "name": "ann"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "1", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}"}}
                ],
                "annotations": [],
            },
            {"role": "tool", "tool_call_id": "1", "content": "out", "name": "f"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {}}}],
        "reasoning_effort": "high",
        "max_completion_tokens": 7,
    },
    "responses": {
        "model": "m",
        "instructions": "s",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}], "id": "msg_1"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "E", "content": None},
            {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "completed",
                "action": {"type": "search", "query": "q"},
            },
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_2",
                "status": "completed",
                "content": [{"type": "output_text", "text": "x", "annotations": [{"type": "url_citation"}]}],
            },
            {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "apply_patch", "input": '*** a\n"b"'},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
            {
                "type": "local_shell_call",
                "id": "lsh_1",
                "call_id": "c2",
                "status": "completed",
                "action": {"type": "exec", "command": ["ls"], "env": {}},
            },
            {"type": "local_shell_call_output", "call_id": "c2", "output": "a.txt"},
        ],
        "tools": [
            {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True},
            {
                "type": "custom",
                "name": "apply_patch",
                "description": "d",
                "format": {"type": "grammar", "syntax": "lark"},
            },
            {"type": "local_shell"},
            {"type": "web_search", "external_web_access": False},
        ],
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "prompt_cache_key": "k",
    },
    "messages": {
        "model": "m",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "s", **CACHED}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi", **CACHED}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "sig"},
                    {"type": "redacted_thinking", "data": "abc"},
                    {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {"query": "q"}},
                    {"type": "web_search_tool_result", "tool_use_id": "srv", "content": []},
                    {"type": "text", "text": "x", "citations": []},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}, "caller": {"type": "direct"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "out"}], **CACHED},
                    {
                        "type": "document",
                        "title": "T",
                        "source": {"type": "text", "media_type": "text/plain", "data": "d"},
                    },
                ],
            },
        ],
        "tools": [
            {"name": "f", "input_schema": {"type": "object"}, **CACHED},
            {"type": "web_search_20250305", "name": "w"},
        ],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {"user_id": "u"},
    },
}


def read(name: str) -> ModelCall:
    return DIALECTS[name].read_request(json.dumps(BODIES[name]).encode(), IMAGES)


@pytest.mark.parametrize("name", BODIES)
def test_a_request_goes_to_an_engine_of_its_dialect_as_it_came(name):
    assert json.loads(DIALECTS[name].write_request(read(name), IMAGES)) == BODIES[name]


@pytest.mark.parametrize("name", BODIES)
def test_a_session_may_choose_the_model_and_the_sampling(name):
    call = msgspec.structs.replace(
        read(name), model="other", sampling=msgspec.structs.replace(read(name).sampling, temperature=0.5)
    )
    assert json.loads(DIALECTS[name].write_request(call, IMAGES)) == {
        **BODIES[name],
        "model": "other",
        "temperature": 0.5,
    }


@pytest.mark.parametrize("source", BODIES)
@pytest.mark.parametrize("target", BODIES)
def test_another_dialect_hears_what_was_said_and_nothing_else(source, target):
    if source == target:
        return
    body = DIALECTS[target].write_request(read(source), IMAGES)
    for word in (
        b"cache_control",
        b"annotations",
        b"prompt_cache_key",
        b"reasoning_effort",
        b"thinking_budget",
        b"ann",
    ):
        assert word not in body
    again = DIALECTS[target].read_request(body, IMAGES)
    assert [call.name for message in again.messages for call in message.tool_calls] == [
        call.name for message in read(source).messages for call in message.tool_calls
    ]


def test_what_the_fields_say_is_told_once_in_our_words():
    assert read("messages").messages == (
        system("s"),
        user("hi"),
        Message(
            "assistant",
            (
                Reasoning("hm", "sig"),
                Reasoning("", "redacted_thinking:abc"),
                Text("x"),
                ToolCall("1", "f", '{"a": 1}'),
            ),
        ),
        Message("tool", (ToolResult("1", (Text("out"),)),)),
        user("[document: T]"),
    )
    assert read("responses").messages == (
        system("s"),
        user("hi"),
        Message(
            "assistant",
            (Reasoning("", "E"), Text("x"), ToolCall("c1", "apply_patch", '{"input":"*** a\\n\\"b\\""}')),
        ),
        tool_result("c1", "done"),
        assistant("", ToolCall("c2", "local_shell", '{"type": "exec", "command": ["ls"], "env": {}}')),
        tool_result("c2", "a.txt"),
    )
    assert [tool.name for tool in read("responses").tools] == ["f", "apply_patch", "local_shell"]


@pytest.mark.parametrize("arguments", ['{"input": "*** Begin\\n\\u00fc"}', '{"input":""}', "*** Begin", '{"a": "b"}'])
def test_a_custom_tool_is_called_with_free_text_whoever_answers(arguments):
    """An engine that only knows functions writes an object with one string; the program is told the string."""
    call = read("responses")
    shell = ToolCall("c8", "local_shell", '{"type":"exec","command":["ls"]}')
    reply = ModelReply(assistant("", ToolCall("c9", "apply_patch", arguments), shell), Finish.TOOL_CALLS, model="m")
    expected = {'{"input": "*** Begin\\n\\u00fc"}': "*** Begin\nü", '{"input":""}': "", '{"a": "b"}': '{"a":"b"}'}
    items = json.loads(RESPONSES.write_reply(reply, call))["output"]
    assert [item["type"] for item in items] == ["custom_tool_call", "local_shell_call"]
    assert items[0]["input"] == expected.get(arguments, arguments)
    assert items[1]["action"] == {"type": "exec", "command": ["ls"]}

    writer = RESPONSES.stream_writer(call)
    stream = writer.open() + b"".join(map(writer.write, events_of(reply)))
    assert (
        reply_of(read_cut("responses", stream, [])).message
        == RESPONSES.read_reply(RESPONSES.write_reply(reply, call)).message
    )
    names = [line.removeprefix(b"event: ") for line in stream.splitlines() if line.startswith(b"event: ")]
    assert b"response.custom_tool_call_input.done" in names
    assert b"response.function_call_arguments.done" not in names


@pytest.mark.parametrize("name", BODIES)
def test_garbage_inside_of_unknown_fields_is_not_passed_on(name):
    body = json.dumps({**BODIES[name], "zz": "@@"}).encode()
    for place in (b'"zz": "@@"', b'"hi"'):
        with pytest.raises(WireError, match="UTF-8"):
            DIALECTS[name].read_request(body.replace(place, place[:-1] + b'\xff"'), IMAGES)


whole_numbers = st.integers() | st.builds(
    lambda digits, sign: sign * 10**digits + 7, st.integers(15, 4000), st.sampled_from([1, -1])
)


@pytest.mark.parametrize("name", BODIES)
@given(number=whole_numbers)
def test_whole_numbers_keep_all_their_digits(name, number):
    """In fields that we do not know, in those that we read and write ourselves, and where a call was changed since."""
    body = {**BODIES[name], "x_seed": number, "x_deep": [{"most": number, "text": str(number)}, -number, 1.5]}
    call = DIALECTS[name].read_request(json.dumps(body).encode(), IMAGES)
    assert call.extra["x_seed"] == number
    changed = msgspec.structs.replace(call, messages=(user("hi"),), tools=(), source=None)
    for sent in (call, changed):
        out = json.loads(DIALECTS[name].write_request(sent, IMAGES))
        assert (out["x_seed"], type(out["x_seed"])) == (number, int)
        assert out["x_deep"] == body["x_deep"]


@pytest.mark.parametrize("name", BODIES)
def test_a_number_that_nobody_reads_is_refused(name):
    body = json.dumps({**BODIES[name], "x": "?"}).encode().replace(b'"?"', b"1" * 5000)
    with pytest.raises(WireError, match=r"field 'x', does not parse: Integer value out of range"):
        DIALECTS[name].read_request(body, IMAGES)
    unwritable = ModelCall("m", (user("hi"),), extra={"x": 10**5000})
    with pytest.raises(WireError, match="cannot be written as JSON"):
        DIALECTS[name].write_request(unwritable, IMAGES)
