"""Tools behind the door: a protocol that answers every body, and official clients that call tools of many rollouts."""

import asyncio
import base64
import contextlib
import json
from collections import defaultdict

import aiohttp
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.engines.function import FunctionEngine
from rollwright.intercept.mcp import VERSIONS, McpServer
from rollwright.rollouts import Environment
from rollwright.tasks import Picture, Task, ToolRefusal, Toolset, tool
from rollwright.wire import HarnessError, Image, Layer, Stop, Text, ToolError, ToolResult, ToolSpec
from sdks import mcp, needs_mcp

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


class Shelf:
    """Two tools of no rollout."""

    specs = (ToolSpec("say", "Says it.", {"type": "object"}), ToolSpec("break"))

    async def call(self, call):
        if call.name == "break":
            raise ToolError("the tool broke \ud800")
        told = json.loads(call.arguments)
        return ToolResult(
            call.id, (Text(json.dumps(told)), Text("half \udc80"), Image("ab", "image/png")), "no" in told
        )

    def image_text(self, sha256, media_type):
        return "AAAA"


SERVER = McpServer(Shelf(), "shelf", "1")


async def told(body, version=""):
    answer = await SERVER.answer(body if isinstance(body, bytes) else orjson.dumps(body), version)
    return answer.status, orjson.loads(answer.body) if answer.body else None


def asked(method, params=None, number=1):
    return {"jsonrpc": "2.0", "id": number, "method": method, **({} if params is None else {"params": params})}


async def test_the_handshake_settles_on_a_version_that_both_speak():
    for offered, agreed in [*zip(VERSIONS, VERSIONS, strict=True), ("2030-01-01", VERSIONS[-1])]:
        status, answer = await told(asked("initialize", {"protocolVersion": offered, "capabilities": {}}, "a"))
        assert (status, answer["id"], answer["result"]["protocolVersion"]) == (200, "a", agreed)
        assert answer["result"]["capabilities"] == {"tools": {}}
    assert await told(asked("ping")) == (200, {"jsonrpc": "2.0", "id": 1, "result": {}})


async def test_tools_are_listed_and_called():
    _, listed = await told(asked("tools/list"))
    assert [shown["name"] for shown in listed["result"]["tools"]] == ["say", "break"]
    assert all(shown["inputSchema"]["type"] == "object" for shown in listed["result"]["tools"])
    _, answer = await told(asked("tools/call", {"name": "say", "arguments": {"ä": "\0"}}))
    text, half, image = answer["result"]["content"]
    assert (json.loads(text["text"]), half["text"]) == ({"ä": "\0"}, "half ?")
    assert image == {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    assert answer["result"]["isError"] is False
    _, answer = await told(asked("tools/call", {"name": "say", "arguments": {"no": 1}}))
    assert answer["result"]["isError"] is True


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, -32700),
        (b"", 400, -32700),
        (b"[" * 100_000, 400, -32700),
        ({}, 400, -32600),
        ({"jsonrpc": "1.0", "id": 1, "method": "ping"}, 200, -32600),
        ({"jsonrpc": "2.0", "id": True, "method": "ping"}, 400, -32600),
        ({"jsonrpc": "2.0", "id": None, "method": "ping"}, 400, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": 5}, 200, -32600),
        (asked("resources/list"), 200, -32601),
        (asked("ping", [1]), 200, -32602),
        (asked("initialize", {}), 200, -32602),
        (asked("tools/list", {"cursor": "2"}), 200, -32602),
        (asked("tools/call", {"name": "other"}), 200, -32602),
        (asked("tools/call", {"name": "say", "arguments": "{}"}), 200, -32602),
        (asked("tools/call", {"name": "break"}), 200, -32603),
        ([], 400, -32600),
        ([asked("ping")] * 65, 400, -32600),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_is_wrong_has_a_code(body, status, code):
    got, answer = await told(body)
    assert (got, answer["error"]["code"]) == (status, code)
    assert answer["error"]["message"]


async def test_what_wants_no_answer_gets_none():
    for silent in (
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 3, "result": {}},
    ):
        assert await told(silent) == (202, None)
        assert await told([silent, silent]) == (202, None)
    _, answers = await told([asked("ping", number=1), asked("nothing", number=2)])
    assert [answer["id"] for answer in answers] == [1, 2]


async def test_a_revision_without_handshake_is_declined_with_those_that_we_speak():
    status, answer = await told(asked("server/discover"), "2026-07-28")
    assert (status, answer["error"]["code"]) == (400, -32022)
    assert answer["error"]["data"] == {"supported": list(VERSIONS), "requested": "2026-07-28"}
    assert (await told(asked("ping"), VERSIONS[0]))[0] == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
PARAMS = st.fixed_dictionaries(
    {}, optional={"name": JSON | st.sampled_from(["say", "break"]), "arguments": JSON, "protocolVersion": JSON}
)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | JSON,
        "id": JSON,
        "method": st.sampled_from(["initialize", "ping", "tools/list", "tools/call", "notifications/x"]) | JSON,
        "params": PARAMS | JSON,
        "result": JSON,
    },
)


@given(body=REQUESTS | JSON | st.lists(REQUESTS, max_size=3))
async def test_every_json_is_answered_in_the_protocols_shape(body):
    status, answer = await told(json.dumps(body).encode())
    assert status in (200, 202, 400)
    assert (answer is None) == (status == 202)
    answers = answer if isinstance(answer, list) else [answer] if answer else []
    for one in answers:
        assert one["jsonrpc"] == "2.0"
        assert ("result" in one) != ("error" in one)
        assert "id" in one
    if isinstance(body, dict) and "result" in (answer or ()):
        assert answer["id"] == body["id"]


@given(body=st.binary(max_size=40))
async def test_every_bytes_are_answered(body):
    status, _ = await told(body)
    assert status in (200, 202, 400)


class Notes(Toolset):
    """Counts its lives, and keeps what each rollout wrote apart."""

    def __init__(self):
        self.kept = defaultdict(list)
        self.opened = self.closed = 0
        self.left = []

    async def open(self):
        self.opened += 1

    async def close(self):
        self.closed += 1

    async def leave(self, rollout):
        self.left.append(rollout)
        self.kept.pop(rollout, None)

    @tool
    def note(self, rollout: str, text: str) -> list[str]:
        """Write a note."""
        if not text:
            raise ToolRefusal("Nothing to note.")
        self.kept[rollout].append(text)
        return self.kept[rollout]

    @tool
    async def look(self):
        """Look around."""
        return [Text("a view"), Picture(PNG)]

    @tool
    def crash(self):
        raise ZeroDivisionError("one over nothing")


class Guess(Task, frozen=True):
    secret: int = 7

    @tool
    def guess(self, number: int, state) -> bool:
        """Guess the number."""
        state["guesses"] = state.get("guesses", 0) + 1
        return number == self.secret


class Program:
    """A program in this process that takes tools."""

    needs_runtime = False
    needs_door = True

    def __init__(self, script):
        self.script = script

    async def run(self, session, around):
        await self.script(around.door, around)
        return Stop.FINISHED


@contextlib.asynccontextmanager
async def connected(door, key=None, **options):
    """The official client at a door."""
    from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

    headers = {"authorization": f"Bearer {key or door.tools_key}"}
    async with (
        create_mcp_http_client(headers=headers) as http,
        mcp.Client(streamable_http_client(door.tools_url, http_client=http), **options) as client,
    ):
        yield client


async def rolled(script, *, n=1, notes=None, task=None):
    notes = notes or Notes()
    environment = Environment([], harness=Program(script), toolsets=[notes])
    async with environment.serving(FunctionEngine(lambda call: "unused"), "m") as serving:
        return await serving.run_group(task or Guess(id="g"), n)


@needs_mcp
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_lists_and_calls(mode):
    seen = {}

    async def script(door, around):
        async with connected(door, mode=mode) as client:
            seen["tools"] = (await client.list_tools()).tools
            seen["note"] = await client.call_tool("note", {"text": "one"})
            seen["look"] = await client.call_tool("look", {})
            seen["guess"] = await client.call_tool("guess", {"number": 7})
            seen["refused"] = await client.call_tool("note", {"text": ""})
            seen["wrong"] = await client.call_tool("guess", {"number": "x"})
            with pytest.raises(mcp.MCPError, match="there is no tool 'other'"):
                await client.call_tool("other", {})
            assert around.supplies()["state"] == {"guesses": 1}

    (trace,) = await rolled(script)
    assert trace.failure is None, trace.failure
    assert [shown.name for shown in seen["tools"]] == ["guess", "note", "look", "crash"]
    assert seen["tools"][0].input_schema["properties"] == {"number": {"type": "integer"}}
    assert json.loads(seen["note"].content[0].text) == ["one"]
    text, image = seen["look"].content
    assert (text.text, image.mime_type, base64.b64decode(image.data)) == ("a view", "image/png", PNG)
    assert seen["guess"].content[0].text == "true"
    assert seen["refused"].is_error
    assert seen["refused"].content[0].text == "Nothing to note."
    assert seen["wrong"].is_error
    assert "Expected `int`, got `str`" in seen["wrong"].content[0].text


@needs_mcp
async def test_one_toolset_serves_all_rollouts_and_keeps_them_apart():
    notes, lists = Notes(), []
    meeting = asyncio.Barrier(8)

    async def script(door, around):
        async with connected(door, mode="legacy") as client:
            for word in ("a", "b"):
                async with asyncio.timeout(30):
                    await meeting.wait()
                last = await client.call_tool("note", {"text": f"{word}{around.trace.attempt}"})
            lists.append((around.trace.attempt, json.loads(last.content[0].text)))

    traces = await rolled(script, n=8, notes=notes)
    assert [trace.failure for trace in traces] == [None] * 8
    assert sorted(lists) == [(n, [f"a{n}", f"b{n}"]) for n in range(8)]
    assert (notes.opened, notes.closed, len(set(notes.left)), notes.kept) == (1, 1, 8, {})


async def post(url, key, body, method="POST", headers=None):
    async with aiohttp.ClientSession() as client:
        headers = {"authorization": f"Bearer {key}", **(headers or {})}
        async with client.request(method, url, data=orjson.dumps(body), headers=headers) as answer:
            return answer.status, await answer.read()


async def test_the_tools_key_opens_tools_and_nothing_else():
    async def script(door, around):
        call = asked("tools/call", {"name": "guess", "arguments": {"number": 1}})
        assert (await post(door.tools_url, door.tools_key, call))[0] == 200
        assert (await post(door.tools_url, door.state_key, call))[0] == 200
        assert (await post(door.tools_url, door.key, call))[0] == 403
        assert (await post(door.tools_url, "wrong", call))[0] == 401
        assert (await post(f"{door.url}/rollout/state", door.tools_key, {}))[0] == 403
        assert (await post(f"{door.url}/v1/chat/completions", door.tools_key, {}))[0] == 403
        for method in ("GET", "DELETE"):
            assert (await post(door.tools_url, door.tools_key, {}, method))[0] == 405
        doors.append(door)

    doors = []
    first, second = await rolled(script, n=2)
    assert first.failure is None, first.failure
    assert second.failure is None
    assert len({key for door in doors for key in (door.key, door.state_key, door.tools_key)}) == 6


async def test_a_tool_that_breaks_fails_its_rollout_whatever_its_program_does():
    async def script(door, around):
        status, body = await post(door.tools_url, door.tools_key, asked("tools/call", {"name": "crash"}))
        assert (status, orjson.loads(body)["error"]["code"]) == (200, -32603)

    (trace,) = await rolled(script)
    assert trace.failure is not None
    assert trace.failure.layer is Layer.TOOL
    assert "one over nothing" in trace.failure.message


async def test_a_call_that_runs_when_the_rollout_ends_is_ended():
    begun, ended = asyncio.Event(), asyncio.Event()

    class Slow(Toolset):
        @tool
        async def wait(self):
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    async def script(door, around):
        calling = asyncio.create_task(post(door.tools_url, door.tools_key, asked("tools/call", {"name": "wait"})))
        async with asyncio.timeout(30):
            await begun.wait()
        calls.append(calling)

    calls = []
    (trace,) = await rolled(script, notes=Slow(), task=Task(id="plain"))
    assert trace.failure is None
    assert ended.is_set()
    assert (await calls[0])[0] == 403


async def test_without_tools_there_is_nothing_to_find():
    async def script(door, around):
        assert (door.tools_url, door.tools_key) == ("", "")
        if (await post(f"{door.url}/rollout/mcp", door.state_key, asked("ping")))[0] != 404:
            raise HarnessError("something is there")

    environment = Environment([], harness=Program(script))
    async with environment.serving(FunctionEngine(lambda call: "unused"), "m") as serving:
        assert (await serving.run(Task(id="plain"))).failure is None
