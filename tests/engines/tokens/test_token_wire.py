"""What servers may send: whole, cut anywhere, wrong, or hostile."""

import base64
from itertools import pairwise

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from rollwright.engines.tokens.reader import TokenStreamReader
from rollwright.engines.tokens.routing import placed, read_rows, write_rows
from rollwright.engines.tokens.wire import WIRES, TokenAsk, read_answer
from rollwright.wire import End, EngineError, Finish, Sampling, WireError, reply_of, user


def answer(**choice):
    return orjson.dumps({"choices": [{"finish_reason": "stop", **choice}]})


def npy(header, body=b""):
    text = header.encode().ljust(117) + b"\n"
    return base64.b64encode(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body).decode()


@given(st.integers(0, 6), st.integers(1, 4), st.integers(1, 3), st.sampled_from(["u1", "<u2"]), st.integers(0, 255))
def test_rows_survive_the_wire(rows, layers, top_k, dtype, fill):
    array = np.full((rows, layers, top_k), fill, dtype)
    back = read_rows(write_rows(array))
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


@pytest.mark.parametrize("dtype", ["<i4", "<i8", "<u4", "i1"])
def test_wide_rows_are_narrowed(dtype):
    rows = read_rows(write_rows(np.array([[[1, 100]]], dtype)))
    assert rows.dtype == np.uint8
    assert rows.tolist() == [[[1, 100]]]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not base64!",
        base64.b64encode(b"no numpy").decode(),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (99999999, 999, 999)}"),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1, 1, 1)}", b"x" * 8),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1)}", b"x" * 4),
        npy("{'descr': '|u1', 'fortran_order': True, 'shape': (1, 1, 1)}", b"x"),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1)}", b"x"),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (-1, -1, 1)}", b"x"),
        npy("{'descr': '<i4', 'fortran_order': False, 'shape': (1, 1, 1)}", b"\xff\xff\xff\xff"),
        npy("[" * 90),
    ],
)
def test_rows_that_are_none_are_refused_without_making_room(text):
    with pytest.raises(WireError, match="routed_experts"):
        read_rows(text)


def test_rows_find_their_place():
    rows = np.zeros((9, 1, 1), np.uint8)
    assert placed(rows, 0, 10).start == 0
    assert placed(rows[:4], 5, 10).start == 5
    assert len(placed(rows, 5, 10).rows) == 4
    with pytest.raises(WireError, match="7 rows"):
        placed(rows[:7], 5, 10)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_answer_give_one_kind_of_error(body):
    with pytest.raises(WireError):
        read_answer(body)


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"token_ids": []},
        {"token_ids": [1, 2]},
        {"token_ids": [1], "logprobs": {"content": []}},
        {"token_ids": [1], "logprobs": None},
        {"logprobs": {"content": [{"logprob": -1.0}]}},
    ],
)
def test_an_answer_without_ids_or_logprobs_has_no_tokens(choice):
    assert read_answer(answer(**choice)).tokens is None


@pytest.mark.parametrize(
    "choice",
    [
        {"token_ids": [1, 2], "logprobs": {"content": [{"logprob": -1.0}]}},
        {"token_ids": [-1], "logprobs": {"content": [{"logprob": -1.0}]}},
        {"token_ids": [2**31], "logprobs": {"content": [{"logprob": -1.0}]}},
        {"finish_reason": "abort"},
        {"finish_reason": None},
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(choice):
    with pytest.raises(WireError):
        read_answer(answer(**choice))


def test_two_answers_to_one_question_are_refused():
    with pytest.raises(WireError, match="2 came"):
        read_answer(orjson.dumps({"choices": [{}, {}]}))


def test_an_error_inside_a_good_answer_is_the_engines():
    with pytest.raises(EngineError, match="out of memory"):
        read_answer(orjson.dumps({"error": {"message": "out of memory", "code": 500}}))


def test_impossible_logprobs_are_the_least_of_floats():
    tokens = read_answer(answer(token_ids=[1, 2], logprobs={"token_logprobs": [None, -99999.0]})).tokens
    assert tokens.logprobs.tolist() == [-9999.0, -9999.0]


@pytest.mark.parametrize("path", ["generate", "completions"])
def test_a_request_says_all_that_was_asked(path):
    sampling = Sampling(temperature=0.0, top_p=0.5, seed=3, stop=("x",))
    ids = np.array([5, 6, 7], np.int32)
    ask = TokenAsk("m", ids, sampling, (2, 1), 9, routed_from=2, extra={"priority": 1})
    body = orjson.loads(WIRES[path].write_ask(ask))
    params = body["sampling_params"] if path == "generate" else body
    assert body["token_ids" if path == "generate" else "prompt"] == [5, 6, 7]
    assert (body["model"], body["stream"], body["priority"]) == ("m", False, 1)
    wanted = {"temperature": 0.0, "top_p": 0.5, "seed": 3, "stop": ["x"], "max_tokens": 9, "stop_token_ids": [2, 1]}
    assert {name: params[name] for name in wanted} == wanted
    assert params["routed_experts_prompt_start"] == 2
    assert params["logprobs"] == 1


# Streams.

ANSWER = "the abc, é 🙂 thing"


def stream():
    ids = [*tiny.engine().encode(ANSWER).tolist(), tiny.engine().special("<|im_end|>")]
    pieces = [
        {"choices": [{"token_ids": [id], "logprobs": {"content": [{"logprob": -0.5}]}, "finish_reason": None}]}
        for id in ids
    ]
    pieces[-1]["choices"][0]["finish_reason"] = "stop"
    return ids, b"".join(b"data: %b\n\n" % orjson.dumps(piece) for piece in pieces) + b"data: [DONE]\n\n"


def reader():
    talker = tiny.renderer()
    return TokenStreamReader(talker.parser(talker.render([user("hi")])))


@given(st.lists(st.integers(0, 4000), max_size=20))
def test_chunk_borders_change_nothing(cuts):
    ids, data = stream()
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reading = reader()
    events = [event for at, end in pairwise(borders) for event in reading.feed(data[at:end])]
    reading.close()
    reply = reply_of(events)
    assert reply.message.text == ANSWER
    assert reply.finish is Finish.STOP
    assert reply.tokens.completion_ids.tolist() == ids


@given(st.integers(0, 3999))
def test_a_stream_that_breaks_off_never_ends_well(cut):
    _, data = stream()
    reading = reader()
    events = reading.feed(data[: min(cut, len(data) - 2)])
    assert not any(isinstance(event, End) for event in events)
    with pytest.raises(WireError, match="cut before its end"):
        reading.close()


def test_pieces_after_the_end_are_refused():
    _, data = stream()
    reading = reader()
    reading.feed(data)
    with pytest.raises(WireError, match="after the end"):
        reading.feed(b'data: {"choices": []}\n\n')
