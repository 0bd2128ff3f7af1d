"""Whatever comes in: a typed 4xx in the dialect's shape, nothing left behind, the neighbours unharmed."""

import asyncio
import gzip
import json
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from yarl import URL

from rollwright.dialects import DIALECTS
from rollwright.engines.function import FunctionEngine

from .doors import admitted, request, rigged, until
from .house import check_shape

ALL = sorted(DIALECTS)
NASTY = st.text(st.characters(codec="utf-8") | st.sampled_from("\0\x1b\u2028\ufeff\U0010ffff"), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NASTY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NASTY, inner, max_size=3),
    max_leaves=6,
)

HORRORS = {
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "object": b"{}",
    "nul": b"\0" * 100,
    "deep list": b"[" * 100_000,
    "deep object": b'{"a":' * 50_000,
    "deep messages": b'{"model":"m","input":[' + b"[" * 50_000 + b'],"messages":[' + b"[" * 50_000,
    "escapes": b'"' + b"\\u0000" * 1000 + b'"',
    "not utf-8": b"\xff\xfe",
}


@pytest.mark.parametrize("dialect", ALL)
def test_bytes_that_are_no_request(dialect, house):
    whole = json.dumps(request(dialect, "héllo", "ok", "go", tools=[])).encode()

    @settings(max_examples=60)
    @given(st.binary(max_size=60), st.integers(0, len(whole)), st.integers(0, len(whole)))
    def attack(noise, start, end):
        house.check(dialect=dialect, body=whole[:start] + noise + whole[end:])

    attack()


@pytest.mark.parametrize("dialect", ALL)
def test_values_of_the_wrong_type_anywhere(dialect, house):
    def places(value, path=()):
        yield path
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for name, inner in items:
            yield from places(inner, (*path, name))

    def put(value, path, new):
        if not path:
            return new
        copy = value.copy()
        copy[path[0]] = put(value[path[0]], path[1:], new)
        return copy

    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    whole = request(dialect, "a", "b", "c", tools=[tool], stop=["x"], temperature=1, stream=True)

    @settings(max_examples=80)
    @given(st.sampled_from(list(places(whole))), VALUES)
    def attack(path, value):
        house.check(dialect=dialect, body=json.dumps(put(whole, path, value)).encode())

    attack()


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("stream", [True, False])
def test_any_text_is_carried_as_it_is(dialect, stream, house):
    @settings(max_examples=30)
    @given(NASTY.filter(bool))
    def carry(text):
        assert house.check(dialect=dialect, body=json.dumps(request(dialect, text, stream=stream)).encode()) == 200
        assert house.rig.trace.messages[0].text == text

    carry()


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("name", HORRORS)
def test_known_horrors(dialect, name, house):
    assert house.check(dialect=dialect, body=HORRORS[name]) == 400


@pytest.mark.parametrize("dialect", ALL)
def test_secrets_that_open_nothing(dialect, house):
    """Wrong, empty, expired, cut, of another kind, in odd places: always the same answer in the dialect's shape."""
    rig, neighbour = house.rig, house.neighbour

    async def expired():
        async with admitted(rig.interceptor, rig.engine, rig.client) as gone:
            return gone.door

    gone = house.runner.run(expired())
    secrets = ["", "x", gone.key, gone.state_key, rig.door.key[:-1], rig.door.key + "x", "\u00e9", "Bearer", "a" * 5000]
    for secret in secrets:
        for headers in ({"authorization": f"Bearer {secret}"}, {"authorization": "", "x-api-key": secret}):
            assert house.check(dialect=dialect, body=b"{}", headers=headers) == 401
    for secret in (rig.door.state_key, neighbour.door.state_key):
        assert house.check(dialect=dialect, body=b"{}", headers={"authorization": f"Bearer {secret}"}) == 403
    assert rig.trace.turns == neighbour.trace.turns == 0


def test_another_rollouts_secret_speaks_for_that_rollout_alone(house):
    body = json.dumps(request("chat", "hello")).encode()
    house.check(body=body, headers={"authorization": f"Bearer {house.neighbour.door.key}"})
    assert (house.rig.trace.turns, house.neighbour.trace.turns) == (0, 1)


@given(NASTY.map(lambda text: text.replace("/", "")), st.sampled_from(["GET", "PUT", "DELETE", "OPTIONS", "PATCH"]))
@settings(max_examples=40)
def test_places_that_do_not_exist(text, method):
    async def main():
        async with rigged(FunctionEngine(lambda call: "x")) as rig:
            for path in (f"/v1/{text}", f"/rollout/{text}", f"/v1/messages/{text}x"):
                url = URL(rig.door.url) / path.lstrip("/").replace("\0", "%00")
                async with rig.client.request(method, url, headers={"x-api-key": rig.door.key}) as answer:
                    assert answer.status in (401, 403, 404, 405), path
                    check_shape("messages" if "/messages" in path else "chat", await answer.read())

    asyncio.run(main())


def raw(port, *pieces):
    """What comes back for bytes on a fresh connection, until the other side hangs up or is silent."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        data = b""
        try:
            for piece in pieces:
                line.sendall(piece)
            line.shutdown(socket.SHUT_WR)
            while chunk := line.recv(65536):
                data += chunk
        except ConnectionError:
            pass  # Hung up on in the middle of what we had to say.
        return data


HEADS = {
    "no http": [b"\0\1\2\3garbage\r\n\r\n"],
    "tls": [bytes.fromhex("160301010001000100fc0303")],
    "long line": [b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n"],
    "long header": [b"GET /v1/models HTTP/1.1\r\nx: " + b"a" * 100_000 + b"\r\n\r\n"],
    "many headers": [b"GET /v1/models HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(5000)) + b"\r\n"],
    "nul in a header": [b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx: a\0b\r\n\r\n"],
    "negative length": [b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n"],
    "two lengths": [b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"],
    "both lengths": [
        b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    ],
    "bad version": [b"GET / HTTP/9.9\r\nhost: x\r\n\r\n"],
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_that_make_no_sense(name, house):
    async def attack():
        return await asyncio.to_thread(raw, house.rig.interceptor.port, *HEADS[name])

    data = house.runner.run(attack())
    if data:
        head, _, body = data.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        assert 400 <= status < 500, head
        check_shape("messages" if b"messages" in HEADS[name][0] and status != 400 else "chat", body)


def test_a_bad_chunk_in_a_body(house):
    async def attack():
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-api-key: {house.rig.door.key}\r\n"
        head += "transfer-encoding: chunked\r\n\r\n"
        return await asyncio.to_thread(raw, house.rig.interceptor.port, head.encode(), b"zz\r\n{}\r\n0\r\n\r\n")

    data = house.runner.run(attack())
    assert not data or int(data.split()[1]) in range(400, 500)
    house.runner.run(until(lambda: house.rig.admission.requests == 0))


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "nonsense"])
def test_a_body_that_may_inflate_without_end_is_not_inflated(coding, house):
    bomb = gzip.compress(b" " * 2**20)
    assert house.check(body=bomb, headers={"content-encoding": coding}) == 415


def test_a_client_that_hangs_up_at_any_byte(house):
    """Cut a good request at every few bytes: nothing stays open, nobody else notices."""
    body = json.dumps(request("chat", "hello", stream=True)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-api-key: {house.rig.door.key}\r\n"
    whole = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body

    async def attack():
        for end in range(1, len(whole), 7):
            _, writer = await asyncio.open_connection("127.0.0.1", house.rig.interceptor.port)
            writer.write(whole[:end])
            writer.transport.abort()
        await until(lambda: house.rig.admission.requests == 0)
        await until(lambda: len(house.rig.interceptor._runner.server.connections) <= 1)

    house.runner.run(attack())
    assert house.rig.trace.open_calls == 0
