"""Chat completions as others write them."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from dialects.cases import IMAGES, plain, read_cut, stream_of
from rollwright.dialects import DIALECTS, ImageStore
from rollwright.wire import (
    CallTokens,
    EngineRefused,
    EngineUnavailable,
    Finish,
    Image,
    Message,
    ModelCall,
    ModelReply,
    Reasoning,
    Routing,
    Sampling,
    Text,
    ToolCall,
    Usage,
    WireError,
    reply_of,
    user,
)

CHAT = DIALECTS["chat"]


def read(**fields) -> ModelCall:
    body = {"model": "m", "messages": [], **fields}
    return CHAT.read_request(json.dumps(body).encode(), IMAGES)


def chunks(*payloads) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(payload).encode() for payload in payloads) + b"data: [DONE]\n\n"


def choice(finish=None, **delta) -> dict:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def test_either_name_of_the_limit_is_read_and_the_same_one_is_passed_on():
    assert read(max_tokens=5).sampling.max_tokens == 5
    call = read(max_completion_tokens=6)
    assert call.sampling.max_tokens == 6
    body = json.loads(CHAT.write_request(call, IMAGES))
    assert body["max_completion_tokens"] == 6
    assert "max_tokens" not in body


def test_one_stop_string_is_a_list_of_one():
    assert read(stop="END").sampling == Sampling(stop=("END",))


def test_unknown_fields_pass_through_untouched():
    extra = {"response_format": {"type": "json_object"}, "logit_bias": {"5": -100}, "user": "ü", "n": 1}
    call = read(**extra)
    assert call.extra == extra
    assert json.loads(CHAT.write_request(call, IMAGES)).items() >= extra.items()


def test_tools_that_are_no_functions_pass_through():
    tools = [{"type": "custom", "custom": {"name": "grep"}}, {"type": "function", "function": {"name": "f"}}]
    call = read(tools=tools)
    assert [tool.name for tool in call.tools] == ["f"]
    assert json.loads(CHAT.write_request(call, IMAGES))["tools"] == tools


def test_several_answers_are_refused():
    with pytest.raises(WireError, match="n is 2"):
        read(n=2)


def test_the_path_of_a_wrong_type_is_told():
    with pytest.raises(WireError, match=r"Expected `str.*\$\.messages\[1\]\.content"):
        read(messages=[{"role": "user", "content": "a"}, {"role": "user", "content": 3}])


def test_an_assistant_turn_with_reasoning_null_content_and_calls():
    function = {"name": "f", "arguments": '{"a" : 1}'}
    turn = {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [{"id": "1", "function": function}]}
    parts = read(messages=[turn]).messages[0].parts
    assert parts == (Reasoning("hm"), ToolCall("1", "f", '{"a" : 1}'))


def test_a_repeated_image_is_stored_once():
    images = ImageStore()
    url = "data:image/png;base64," + base64.b64encode(b"x" * 1000).decode()
    part = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    messages = [{"role": "user", "content": [part]}] * 45
    call = CHAT.read_request(json.dumps({"model": "m", "messages": messages}).encode(), images)
    assert len(images) == 1
    assert {part for message in call.messages for part in message.parts} == {images.put(b"x" * 1000, "image/png")}


@pytest.mark.parametrize(
    "url", ["https://example.org/a.png", "data:image/png;base64,a===", "data:text/html;base64,YQ==", "data:", ""]
)
def test_an_image_without_bytes_is_refused(url):
    part = {"type": "image_url", "image_url": {"url": url}}
    with pytest.raises(WireError, match="image"):
        read(messages=[{"role": "user", "content": [part]}])


def test_an_image_that_the_store_lacks_is_refused_when_written():
    with pytest.raises(WireError, match="not in this store of 0 images"):
        CHAT.write_request(ModelCall("m", (Message("user", (Image("0" * 64, "image/png"),)),)), ImageStore())


def test_a_tool_message_holds_results_only():
    with pytest.raises(WireError, match="tool results"):
        CHAT.write_request(ModelCall("m", (Message("tool", (Text("x"),)),)), IMAGES)


def test_a_client_asks_for_usage_and_for_tokens():
    body = json.loads(CHAT.write_request(ModelCall("m", (user("x"),), stream=True, return_tokens=True), IMAGES))
    assert body["stream_options"] == {"include_usage": True}
    assert body["return_token_ids"] is body["logprobs"] is True


def test_nonsense_in_the_stream_options_is_replaced_not_obeyed():
    body = json.loads(CHAT.write_request(read(stream=True, stream_options=3), IMAGES))
    assert body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("word", "finish"),
    [
        ("stop", Finish.STOP),
        ("eos", Finish.STOP),
        ("length", Finish.LENGTH),
        ("function_call", Finish.TOOL_CALLS),
        ("content_filter", Finish.REFUSAL),
    ],
)
def test_finish_reasons(word, finish):
    body = {"choices": [{"message": {"content": "x"}, "finish_reason": word}]}
    assert CHAT.read_reply(json.dumps(body).encode()).finish is finish
    assert reply_of(read_cut("chat", chunks(choice(content="x"), choice(word)), [])).finish is finish


def test_an_answer_that_did_not_finish_is_no_answer():
    body = {"choices": [{"message": {"content": "x"}, "finish_reason": None}]}
    with pytest.raises(WireError, match="did not finish"):
        CHAT.read_reply(json.dumps(body).encode())
    with pytest.raises(WireError, match="without a finish_reason"):
        read_cut("chat", chunks(choice(content="x")), [])


def test_a_refusal_is_text_and_a_finish():
    message = {"content": None, "refusal": "No."}
    reply = CHAT.read_reply(json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode())
    assert (reply.message.text, reply.finish) == ("No.", Finish.REFUSAL)
    assert plain(reply_of(read_cut("chat", chunks(choice(refusal="No."), choice("stop")), []))) == plain(reply)


def test_an_engine_that_fails_inside_a_good_answer():
    overloaded = {"error": {"message": "busy", "code": 503}}
    with pytest.raises(EngineUnavailable, match="busy"):
        CHAT.read_reply(json.dumps(overloaded).encode())
    with pytest.raises(EngineUnavailable, match="busy"):
        CHAT.stream_reader().feed(chunks(choice(content="x"), overloaded))
    with pytest.raises(EngineRefused, match="too long"):
        CHAT.stream_reader().feed(chunks({"error": {"message": "too long", "type": "invalid_request_error"}}))


def test_what_the_stream_writer_calls_an_error_is_one():
    with pytest.raises(EngineUnavailable, match="gone"):
        CHAT.stream_reader().feed(CHAT.stream_writer(ModelCall("m", ())).error("gone"))


def test_tool_calls_without_an_index_are_told_apart_by_id():
    first = {"id": "a", "function": {"name": "f", "arguments": '{"x"'}}
    rest = {"function": {"arguments": ":1}"}}
    second = {"id": "b", "function": {"name": "g", "arguments": "{}"}}
    body = chunks(
        choice(tool_calls=[first]), choice(tool_calls=[rest]), choice(tool_calls=[second]), choice("tool_calls")
    )
    assert reply_of(read_cut("chat", body, [])).message.tool_calls == (
        ToolCall("a", "f", '{"x":1}'),
        ToolCall("b", "g", "{}"),
    )


def test_a_provider_that_sends_its_reasoning_under_two_names_is_heard_once():
    body = chunks(choice(reasoning="hm", reasoning_content="hm"), choice(content="x"), choice("stop"))
    assert reply_of(read_cut("chat", body, [])).message.reasoning == "hm"


def tokens(rows: int = 3) -> CallTokens:
    routing = Routing(2, np.arange(rows * 4, dtype="u1").reshape(rows, 2, 2))
    return CallTokens(np.array([1, 2, 3], "i4"), np.array([4, 5], "i4"), np.array([-0.1, -2.5], "f4"), routing)


def test_tokens_may_be_spread_over_the_chunks():
    def piece(ids, logprobs, finish=None, **more):
        content = [{"token": "t", "logprob": logprob, "bytes": None, "top_logprobs": []} for logprob in logprobs]
        one = {"index": 0, "delta": {"content": "x"}, "finish_reason": finish, "token_ids": ids, **more}
        return {"choices": [{**one, "logprobs": {"content": content}}], "model": "m"}

    data = base64.b64encode(bytes(range(12))).decode()
    experts = {"start": 2, "dtype": "u1", "shape": [3, 2, 2], "data": data}
    body = chunks(
        {**choice(role="assistant"), "prompt_token_ids": [1, 2, 3]},
        piece([4], [-0.1]),
        piece([], []),
        piece([5], [-2.5], "stop", routed_experts=experts),
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}, "policy_version": 9},
    )
    expected = ModelReply(Message("assistant", (Text("xxx"),)), Finish.STOP, Usage(3, 2), tokens(), 9, "m")
    assert plain(reply_of(read_cut("chat", body, []))) == plain(expected)


def test_tokens_are_written_for_those_who_asked():
    reply = ModelReply(Message("assistant", (Text("x"),)), Finish.STOP, tokens=tokens(), model="m")
    silent = CHAT.write_reply(reply, ModelCall("m", ()))
    assert b"token_ids" not in silent
    assert CHAT.read_reply(silent).tokens is None
    assert CHAT.read_reply(CHAT.write_reply(reply, ModelCall("m", (), return_tokens=True))).tokens is not None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token_ids", [4]),
        ("token_ids", [4, -5]),
        ("token_ids", [4, 2**31]),
        ("token_ids", [4, 5.5]),
        ("logprobs", {"content": [{"logprob": None}, {"logprob": -1}]}),
        ("logprobs", None),
        ("routed_experts", {"start": 0, "dtype": "u1", "shape": [9, 9, 9], "data": "AAAA"}),
        ("routed_experts", {"start": -1, "dtype": "u1", "shape": [0, 1, 1], "data": ""}),
        ("routed_experts", {"start": 0, "dtype": "O", "shape": [1, 1, 1], "data": "AAAA"}),
        ("routed_experts", {"start": 0, "dtype": "f4", "shape": [1, 1, 1], "data": "AAAAAA=="}),
        ("routed_experts", {"start": 0, "dtype": "u1", "shape": [1, 1], "data": "AA=="}),
        ("routed_experts", {"start": 0, "dtype": "u1", "shape": [1, 1, 1], "data": "!"}),
    ],
)
def test_tokens_that_do_not_fit_together_are_refused(field, value):
    reply = ModelReply(Message("assistant", (Text("x"),)), Finish.STOP, tokens=tokens(), model="m")
    body = json.loads(CHAT.write_reply(reply, ModelCall("m", (), return_tokens=True)))
    body["choices"][0][field] = value
    with pytest.raises(WireError):
        CHAT.read_reply(json.dumps(body).encode())


def test_minus_infinity_is_written_as_a_floor_and_nonsense_is_not_written():
    ids, prompt = np.array([4], "i4"), np.array([], "i4")
    call = ModelCall("m", (), return_tokens=True)

    def written(logprob):
        reply = ModelReply(
            Message("assistant", ()), Finish.STOP, tokens=CallTokens(prompt, ids, np.array([logprob], "f4"))
        )
        return CHAT.read_reply(CHAT.write_reply(reply, call)).tokens.logprobs.tolist()

    assert written(-np.inf) == [-9999.0]
    with pytest.raises(WireError, match="logprob"):
        written(np.nan)


def test_bytes_after_the_end_are_not_read():
    reply = ModelReply(Message("assistant", (Text("x"),)), Finish.STOP, model="m")
    assert len(read_cut("chat", stream_of("chat", reply) + b"data: nonsense\n\n", [])) == 2
