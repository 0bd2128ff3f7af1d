"""Keys, error bodies of all shapes, names."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from dialects.cases import NAMES
from rollwright.dialects import DIALECTS, dialect_named, write_models
from rollwright.wire import UsageError

CHAT = DIALECTS["chat"]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"error": {"message": "bad key", "type": "x"}}, "bad key"),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "bad key"}}, "bad key"),
        ({"error": "bad key"}, "bad key"),
        ({"message": "bad key"}, "bad key"),
        ({"object": "error", "message": "bad key", "code": 40}, "bad key"),
        ({"detail": "bad key"}, "bad key"),
        ({"detail": [{"loc": ["body"], "msg": "bad"}, {"msg": "key"}]}, "bad; key"),
        ("bad\n  key", "bad key"),
        ([{"error": {"message": "bad key"}}], "bad key"),
        ({"error": None}, "HTTP 429 Too Many Requests without a message"),
        ({}, "HTTP 429 Too Many Requests without a message"),
    ],
)
def test_the_sentence_is_found_in_any_error_body(body, sentence):
    assert CHAT.read_error(429, json.dumps(body).encode()) == sentence


def test_bodies_that_are_no_json_are_shown_in_part():
    assert CHAT.read_error(502, b"<html>Bad \xff gateway</html>") == "<html>Bad \ufffd gateway</html>"
    assert CHAT.read_error(799, b"") == "HTTP 799 without a message"
    assert len(CHAT.read_error(500, b"x" * 10**6)) < 600


@given(status=st.integers(100, 999), body=st.binary(max_size=60))
def test_an_error_always_has_a_sentence(status, body):
    assert CHAT.read_error(status, body)


def test_a_deep_error_is_no_trap():
    assert CHAT.read_error(500, b'{"error":' * 900 + b"1" + b"}" * 900)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 418, 429, 500, 503, 529])
def test_an_error_that_we_write_is_one_that_we_read(name, status):
    dialect = DIALECTS[name]
    body = dialect.write_error(status, "no \u2028 luck")
    assert dialect.read_error(status, body) == "no luck"
    assert json.loads(body)["error"]["type"]
    assert json.loads(dialect.write_error(status, "x", "my_kind"))["error"]["type"] == "my_kind"


@pytest.mark.parametrize("name", NAMES)
def test_the_key_that_a_client_sends_is_the_one_that_a_server_reads(name):
    dialect = DIALECTS[name]
    assert dialect.read_key(dialect.headers("k-1")) == "k-1"
    assert dialect.read_key(CIMultiDict({name.upper(): value for name, value in dialect.headers("k").items()})) == "k"
    assert dialect.read_key(dialect.headers("")) == ""
    assert dialect.read_key({"AUTHORIZATION": "bearer  k "}) == "k"
    assert dialect.read_key({"authorization": "Basic abc", "X-Api-Key": "k"}) == "k"


def test_the_messages_api_wants_its_version():
    assert DIALECTS["messages"].headers("k") == {"x-api-key": "k", "anthropic-version": "2023-06-01"}


def test_a_dialect_is_known_by_name():
    assert [dialect_named(name).path for name in ("chat", "responses", "messages")] == [
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
    ]
    with pytest.raises(UsageError, match="did you mean 'messages'"):
        dialect_named("mesages")
    with pytest.raises(UsageError, match="there is chat, messages, responses"):
        dialect_named("zzz")


def test_models_have_the_shape_of_the_api():
    listed = json.loads(write_models(["a", "b"]))
    assert (listed["object"], [model["id"] for model in listed["data"]]) == ("list", ["a", "b"])
