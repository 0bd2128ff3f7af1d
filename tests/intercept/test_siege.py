"""Many bad clients at once, and bodies without end: each gets its refusal, the books are empty afterwards, and whoever
lives next door is served meanwhile."""

import asyncio
import contextlib
import json

import pytest
from hypothesis import given, settings

from dialects.cases import json_objects, json_values
from rollwright.dialects import DIALECTS
from rollwright.engines.function import FunctionEngine
from rollwright.intercept import InterceptConfig

from .doors import PATHS, admitted, rigged, until
from .house import check_shape
from .test_hostile import HORRORS

ALL = sorted(DIALECTS)
MANY = 150


def head(key, *lines, path="/v1/chat/completions"):
    fields = [f"POST {path} HTTP/1.1", "host: x", f"authorization: Bearer {key}", *lines]
    return "\r\n".join([*fields, "", ""]).encode()


async def answered(port, data, trickle=b""):
    """The status that a client gets who sends this and then one byte after the other; 0 if it is only hung up on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    trickling = asyncio.ensure_future(_trickled(writer, trickle))
    try:
        writer.write(data)
        line = await reader.readline()
        return int(line.split()[1]) if line else 0
    except ConnectionError:
        return 0
    finally:
        trickling.cancel()
        writer.transport.abort()


async def _trickled(writer, data):
    with contextlib.suppress(ConnectionError):
        for at in range(len(data)):
            await asyncio.sleep(0.02)
            writer.write(data[at : at + 1])


SIEGES = {
    # The head without its end, then a byte at a time.
    "slow heads": (lambda key: head(key)[:-2], b"x: " + b"y" * 10_000, {0, 400, 408}),
    "slow bodies": (lambda key: head(key, "content-length: 10000"), b"{" * 10_000, {408}),
    "slow chunks": (lambda key: head(key, "transfer-encoding: chunked"), b"1\r\n{\r\n" * 2000, {408}),
    "silence": (lambda key: b"", b"", {0}),
    "floods of headers": (lambda key: head(key, *(f"x-{n}: y" for n in range(5000))), b"", {400, 431}),
    "wrong keys": (lambda key: head("wrong", "content-length: 2") + b"{}", b"", {401}),
    "garbage": (lambda key: b"\0" * 4096 + b"\r\n\r\n", b"", {400}),
}


@pytest.mark.parametrize("name", SIEGES)
async def test_many_bad_clients_are_sent_away_and_the_neighbour_is_served(name):
    make, trickle, expected = SIEGES[name]
    config = InterceptConfig(idle_timeout_s=0.5, body_timeout_s=0.5, max_open_calls=MANY)
    engine = FunctionEngine(lambda call: "unharmed")
    async with rigged(engine, config=config) as rig, admitted(rig.interceptor, engine, rig.client) as neighbour:
        port, data = rig.interceptor.port, make(rig.door.key)
        siege = [asyncio.ensure_future(answered(port, data, trickle)) for _ in range(MANY)]
        while not all(one.done() for one in siege):
            async with neighbour.post("hello", stream=False) as answer:
                assert DIALECTS["chat"].read_reply(await answer.read()).message.text == "unharmed"
            await asyncio.sleep(0.01)
        assert {one.result() for one in siege} <= expected
        await until(lambda: rig.admission.requests == 0)
        await until(lambda: len(rig.interceptor._runner.server.connections) <= 2)
        assert (rig.interceptor.held_bytes, rig.trace.turns, rig.trace.open_calls) == (0, 0, 0)


@pytest.mark.parametrize("dialect", ALL)
async def test_a_body_without_end_is_cut_off_at_the_limit(dialect):
    """A gigabyte that does not say how long it is, under the limit that is shipped: what goes through before the
    refusal is the limit and what lies in sockets."""
    async with rigged(FunctionEngine(lambda call: "x")) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.interceptor.port)
        writer.write(head(rig.door.key, "transfer-encoding: chunked", path=PATHS[dialect]))
        writer.write(b'2\r\n{"\r\n')
        piece, sent = b"100000\r\n" + b"x" * 2**20 + b"\r\n", 0
        with contextlib.suppress(ConnectionError):
            while sent < 1024 and not reader._buffer:
                writer.write(piece)
                await writer.drain()
                sent += 1
        assert sent < 64 + 32
        assert (await reader.readline()).split()[1] == b"413"
        writer.transport.abort()
        await until(lambda: rig.admission.requests == 0)
        assert rig.interceptor.held_bytes == 0


@pytest.mark.parametrize("name", HORRORS)
@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/rollout/state", "/rollout/mcp"])
def test_known_horrors_beside_the_calls(path, name, house):
    key = house.rig.door.state_key if path.startswith("/rollout") else house.rig.door.key
    headers = {"authorization": f"Bearer {key}"}
    dialect = "messages" if "messages" in path else "chat"
    status = house.check(dialect=dialect, path=path, body=HORRORS[name], headers=headers)
    # An object is a state, if an empty one; there are no tools behind this door.
    assert status == (404 if path.endswith("mcp") else 200 if (path, name) == ("/rollout/state", "object") else 400)


def test_any_json_is_a_state_or_refused(house):
    @settings(max_examples=60)
    @given(json_objects | json_values)
    def attack(value):
        body, headers = json.dumps(value).encode(), {"authorization": f"Bearer {house.rig.door.state_key}"}
        status = house.check(path="/rollout/state", body=body, headers=headers)
        assert status == (200 if isinstance(value, dict) else 400)

    attack()


@pytest.mark.parametrize(
    "path", ["/v1/models/\0", "/v1/models/%00%ff", "/v1/models/..%2f..", "/v1/models//", "/models?x"]
)
def test_odd_names_of_models(path, house):
    async def ask():
        rig = house.rig
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.interceptor.port)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {rig.door.key}\r\n\r\n".encode())
        status = int((await reader.readline()).split()[1])
        fields = {}
        while line := (await reader.readline()).strip():
            name, _, value = line.decode().partition(": ")
            fields[name.lower()] = value
        body = await reader.readexactly(int(fields["content-length"]))
        writer.transport.abort()
        return status, body

    status, body = house.runner.run(ask())
    assert status == (200 if path == "/models?x" else 404 if "\0" not in path else 400)
    if status != 200:
        check_shape("chat", body)
