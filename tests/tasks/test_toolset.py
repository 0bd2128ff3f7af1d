"""Toolsets: opened once, offered beside a task's own tools, closed whatever happens; and servers that others run."""

import asyncio
import json
import sys

import pytest

from rollwright.engines.function import FunctionEngine
from rollwright.rollouts import Environment
from rollwright.tasks import Picture, Task, Taskset, Toolset, metric, tool
from rollwright.tasks.browser import BrowserToolset
from rollwright.tasks.mcp import McpToolset
from rollwright.wire import Image, Layer, Text, ToolCall, ToolResult, UsageError, assistant
from sdks import needs_mcp

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)


class Counter(Toolset):
    def __init__(self):
        self.life = []
        self.counts = {}

    async def open(self):
        self.life.append("open")

    async def close(self):
        self.life.append("close")

    async def leave(self, rollout):
        del self.counts[rollout]

    @tool
    def count(self, rollout: str, state, by: int = 1) -> int:
        """Count on."""
        self.counts[rollout] = self.counts.get(rollout, 0) + by
        state["count"] = self.counts[rollout]
        return self.counts[rollout]

    @tool
    def look(self) -> Picture:
        return Picture(PNG)


class Own(Task, frozen=True):
    @tool
    def mine(self) -> str:
        return "of the task"

    @metric
    def counted(self, state) -> int:
        return state["count"]


def calling(*steps):
    """A model that calls one tool after the other, then ends."""

    def answer(call):
        done = sum(bool(message.tool_calls) for message in call.messages)
        if done == len(steps):
            return "done"
        name, arguments = steps[done]
        return assistant("", ToolCall(f"c{done}", name, json.dumps(arguments)))

    return FunctionEngine(answer)


def results(trace):
    return [part for message in trace.messages for part in message.parts if isinstance(part, ToolResult)]


async def chatted(engine, toolsets, task=None, n=1, taskset=()):
    environment = Environment(taskset, toolsets=toolsets)
    async with environment.serving(engine, "m") as serving:
        return await serving.run_group(task or Task(id="t", prompt="Go."), n)


async def test_a_chat_has_the_tasks_tools_and_the_environments():
    counter = Counter()
    steps = [("count", {}), ("count", {"by": 2}), ("mine", {}), ("look", {}), ("other", {})]
    traces = await chatted(calling(*steps), [counter], Own(id="t", prompt="Go."), n=3)
    for trace in traces:
        assert trace.failure is None, trace.failure
        one, three, mine, look, other = results(trace)
        assert [part.content[0].text for part in (one, three, mine)] == ["1", "3", "of the task"]
        assert isinstance(look.content[0], Image)
        assert other.is_error
        assert other.content[0].text == "There is no tool 'other'. The tools are: mine, count, look."
        assert trace.scores["counted"].value == 3
        assert [spec.name for spec in trace.tools] == ["mine", "count", "look"]
    assert (counter.life, counter.counts) == (["open", "close"], {})


async def test_a_taskset_brings_toolsets_that_are_new_in_each_run():
    made = []

    class Counted(Taskset, frozen=True):
        def tasks(self):
            return []

        def toolsets(self):
            made.append(Counter())
            return [made[-1]]

    for _ in range(2):
        (trace,) = await chatted(calling(("count", {})), [], taskset=Counted())
        assert results(trace)[0].content == (Text("1"),)
    assert [one.life for one in made] == [["open", "close"]] * 2


async def test_names_are_unique():
    with pytest.raises(UsageError, match="both Counter and Counter have a tool 'count'"):
        await chatted(calling(), [Counter(), Counter()])

    class Same(Task, frozen=True):
        @tool
        def count(self) -> int:
            return 0

    (trace,) = await chatted(calling(), [Counter()], Same(id="s"))
    assert trace.failure.layer is Layer.TASK
    assert "task 's' and toolset Counter both have a tool 'count'" in trace.failure.message


async def test_what_was_opened_is_closed_where_another_does_not_open():
    counter = Counter()

    class Broken(Counter):
        async def open(self):
            await super().open()
            raise OSError("no such device")

    broken = Broken()
    with pytest.raises(UsageError, match="toolset Broken did not open: OSError: no such device"):
        await chatted(calling(), [counter, broken])
    assert (counter.life, broken.life) == (["open", "close"],) * 2


async def test_a_toolset_that_cannot_let_go_spoils_nothing(caplog):
    class Sticky(Counter):
        async def leave(self, rollout):
            raise RuntimeError("stuck")

        async def close(self):
            raise RuntimeError("jammed")

    counter = Counter()
    (trace,) = await chatted(calling(("count", {})), [Sticky()])
    assert trace.failure is None
    assert "stuck" in caplog.text
    assert "jammed" in caplog.text
    assert counter.life == []


async def test_a_cancelled_rollout_leaves_too():
    counter, asked = Counter(), asyncio.Event()

    class Waiting(FunctionEngine):
        async def complete(self, call):
            if len(call.messages) > 1:
                asked.set()
                await asyncio.Event().wait()
            return await super().complete(call)

    engine = Waiting(lambda call: assistant("", ToolCall("c", "count", "{}")))
    async with Environment([], toolsets=[counter]).serving(engine, "m") as serving:
        running = asyncio.create_task(serving.run(Task(id="t", prompt="Go.")))
        async with asyncio.timeout(30):
            await asked.wait()
        assert len(counter.counts) == 1
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert counter.counts == {}


def test_a_toolset_has_tools_only():
    class Odd(Toolset):
        @metric
        def number(self):
            return 1

    with pytest.raises(UsageError, match="toolset Odd cannot be used: 'number' of Odd is a metric"):
        asyncio.run(chatted(calling(), [Odd()]))


async def test_a_tool_that_asks_for_a_box_gets_one():
    class Files(Toolset):
        @tool
        async def write(self, runtime, text: str) -> str:
            await runtime.write("a.txt", text.encode())
            return (await runtime.read("a.txt")).decode()

    (trace,) = await chatted(calling(("write", {"text": "words"})), [Files()])
    assert trace.failure is None, trace.failure
    assert results(trace)[0].content == (Text("words"),)


SERVER = """
import base64
from mcp.server.mcpserver import MCPServer, Image
server = MCPServer("others")

@server.tool()
def add(a: int, b: int) -> int:
    "Adds."
    return a + b

@server.tool()
def show() -> Image:
    return Image(data=bytes(range(32)), format="png")

@server.tool()
def fail() -> str:
    raise ValueError("not today")

server.run()
"""


@needs_mcp
async def test_tools_of_a_server_that_others_run():
    others = McpToolset([sys.executable, "-c", SERVER], prefix="their_")
    steps = [("their_add", {"a": 2, "b": 3}), ("their_show", {}), ("their_fail", {}), ("their_add", {"a": "x"})]
    traces = await chatted(calling(*steps), [others], n=4)
    for trace in traces:
        assert trace.failure is None, trace.failure
        five, image, fail, wrong = results(trace)
        assert five.content[0].text == "5"
        assert image.content[0].media_type == "image/png"
        assert [part.is_error for part in (five, image, fail, wrong)] == [False, False, True, True]
        assert {"their_add", "their_show", "their_fail"} == {spec.name for spec in trace.tools}
    assert repr(others).endswith("not connected>")


@needs_mcp
async def test_tools_over_http_are_those_of_our_own_server():
    """Our client at our server, with the SDK between them."""
    counter = Counter()

    class Relay:
        needs_runtime, needs_door = False, True

        async def run(self, session, around):
            door = around.door
            headers = {"authorization": f"Bearer {door.tools_key}"}
            far = McpToolset(url=door.tools_url, headers=headers)
            (inner,) = await chatted(calling(("count", {"by": 5}), ("look", {})), [far])
            seen.append(inner)

    seen = []
    async with Environment([], harness=Relay(), toolsets=[counter]).serving(calling(), "m") as serving:
        await serving.run(Task(id="outer"))
    assert seen[0].failure is None, seen[0].failure
    count, look = results(seen[0])
    assert count.content == (Text("5"),)
    assert isinstance(look.content[0], Image)


@needs_mcp
async def test_a_server_that_is_not_there_is_told_before_the_run():
    with pytest.raises(UsageError, match="does not answer"):
        await chatted(calling(), [McpToolset([sys.executable, "-c", "pass"])])
    with pytest.raises(UsageError, match="does not answer"):
        await chatted(calling(), [McpToolset(url="http://127.0.0.1:1/mcp")])


@needs_mcp
async def test_a_server_that_dies_is_an_error_of_the_tool():
    dying = SERVER.replace("return a + b", "__import__('os')._exit(3)")
    (trace,) = await chatted(calling(("add", {"a": 1, "b": 2})), [McpToolset([sys.executable, "-c", dying])])
    assert trace.failure.layer is Layer.TOOL
    assert "add of the MCP server" in trace.failure.message


async def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(UsageError, match=r"pip install 'rollwright\[mcp\]'"):
        await chatted(calling(), [McpToolset("server")])
    monkeypatch.setitem(sys.modules, "playwright.async_api", None)
    with pytest.raises(UsageError, match=r"pip install 'rollwright\[browser\]'"):
        await chatted(calling(), [BrowserToolset(["a.test"])])


def test_a_server_is_a_command_or_an_address():
    for wrong in ({}, {"command": "x", "url": "http://y"}):
        with pytest.raises(UsageError, match="either a command or a url"):
            McpToolset(**wrong)
