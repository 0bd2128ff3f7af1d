"""Commands at Modal: carried once, whatever happens to requests and answers; tunnels; resets; scripts."""

import asyncio
import os
import textwrap

import pytest

from rollwright.runtimes.asking import FETCH, line_of, served, sh
from rollwright.runtimes.contract import Ending
from rollwright.runtimes.state import differences
from rollwright.wire import RuntimeFault, RuntimeLost

PATIENCE_S = 30.0
COUNT = ["sh", "-c", "echo ran >> count; cat count"]


@pytest.fixture
def status(world):
    from grpclib import Status

    return Status


@pytest.mark.parametrize("call", ["TaskExecStart", "after TaskExecStart", "TaskExecWait", "TaskExecStdioRead"])
async def test_a_command_whose_request_or_answer_is_lost_runs_once(box, world, status, call):
    world.fail(call, status.UNAVAILABLE)
    assert (await box.run(COUNT, timeout_s=PATIENCE_S)).stdout == b"ran\n"


async def test_a_command_that_the_sdk_gives_up_on_is_asked_for_again_and_runs_once(box, world, status):
    world.fail("after TaskExecStart", status.DATA_LOSS)
    assert (await box.run(COUNT, timeout_s=PATIENCE_S)).stdout == b"ran\n"


async def test_an_expired_pass_to_the_worker_is_renewed(make, world, monkeypatch):
    monkeypatch.setattr(world, "pass_lasts_s", 1)
    async with make() as runtime:
        world.named(runtime.name).jwt = "the worker has forgotten the old one"
        before = world.calls["SandboxGetCommandRouterAccess"]
        assert (await runtime.run(COUNT, timeout_s=PATIENCE_S)).stdout == b"ran\n"
        assert world.calls["SandboxGetCommandRouterAccess"] == before + 1


async def test_a_program_that_is_cancelled_on_its_way_leaves_nothing(box, world):
    fresh = await box.inspect()
    running = asyncio.create_task(box.run(["sh", "-c", "sleep 1000"], timeout_s=1000))
    async with world.reached("TaskExecStart"):
        running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    opening = asyncio.create_task(box.open_process(["sh", "-c", "sleep 1000"]))
    async with world.reached("TaskExecStart"):
        opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert differences(fresh, await box.inspect()) == []
    assert await box.alive()


async def test_a_cancelled_read_loses_nothing(box):
    heard = b""
    async with await box.open_process(["cat"]) as process:
        for turns in range(40):
            reading = asyncio.create_task(process.read())
            await process.write(b"%04d" % turns)
            for _ in range(turns):
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait({reading})
            heard += b"" if reading.cancelled() else reading.result()
        await process.close_stdin()
        async with asyncio.timeout(PATIENCE_S):
            while piece := await process.read():
                heard += piece
    assert heard == b"".join(b"%04d" % turns for turns in range(40))


async def test_an_exposed_port_is_reached_through_the_tunnel(box):
    server = "import http.server as h; s = h.HTTPServer(('127.0.0.1', 8123), h.SimpleHTTPRequestHandler)"
    await box.write("hello.txt", b"from inside")
    async with await box.open_process(["python3", "-u", "-c", f"{server}; print('up'); s.serve_forever()"]) as process:
        assert await line_of(process.read) == "up"
        address = (await box.expose(8123)).removeprefix("https://")
        host, _, port = address.partition(":")
        assert await fetched(host, int(port), "/hello.txt") == b"from inside"


async def fetched(host, port, path):
    """The stand-in ends no TLS at its edge, so this speaks plainly."""
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    return answer.partition(b"\r\n\r\n")[2]


async def test_a_port_that_was_not_asked_for_is_refused_with_the_setting(box):
    with pytest.raises(RuntimeFault, match=r"runtime\.ports"):
        await box.expose(4444)


async def test_a_public_address_is_used_where_there_is_one(make):
    async with make(forward_via="https://example.test/{port}/") as runtime:
        assert await runtime.forward(80) == "https://example.test/80"


async def test_a_relay_to_the_host_ends_with_a_reset_and_begins_anew(box):
    fresh = await box.inspect()
    async with served("hello") as port:
        for _ in range(2):
            url = await box.forward(port)
            assert await box.forward(port) == url
            assert await sh(box, FETCH.replace("URL", f"{url}/")) == "hello"
            await box.reset()
            assert differences(fresh, await box.inspect()) == []


async def test_a_relay_that_broke_is_closed_before_another_begins(box):
    async with served("hello") as port:
        await box.forward(port)
        tunnel = box._relays[port][0]
        tunnel._break()
        url = await box.forward(port)
        assert not tunnel._tasks
        assert await sh(box, FETCH.replace("URL", f"{url}/")) == "hello"


async def test_words_longer_than_the_vendor_takes_arrive(box):
    word = "x" * 70_000
    result = await box.run(["printf", "%s", word], timeout_s=PATIENCE_S)
    assert result.stdout == word.encode()


async def test_megabytes_in_and_out(box):
    blob = os.urandom(5 << 20)
    result = await box.run(["cat"], stdin=blob, output_limit=8 << 20, timeout_s=PATIENCE_S)
    assert result.stdout == blob


async def test_a_daemon_without_a_trace_of_its_origin_does_not_survive_a_reset(box):
    fresh = await box.inspect()
    await box.run(["sh", "-c", "env -i setsid sh -c 'sleep 1000 & sleep 1001' > /dev/null 2>&1 &"])
    async with asyncio.timeout(PATIENCE_S):
        while sum("processes" in line for line in differences(fresh, await box.inspect())) < 2:
            pass
    await box.reset()
    assert differences(fresh, await box.inspect()) == []


async def test_a_changed_tool_of_the_box_is_told(box):
    fresh = await box.inspect()
    await box.run(["sh", "-c", 'echo "# mine" >> "$HOME/../control/box.sh"'])
    await box.reset()
    assert any("box.sh" in line for line in differences(fresh, await box.inspect()))


async def test_half_a_reset_is_none(box, world, status):
    resetting = asyncio.create_task(box.reset())
    async with world.reached("TaskExecStart"):
        resetting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await resetting
    assert not await box.alive()
    with pytest.raises(RuntimeLost, match="could not be reset"):
        await box.run(["true"])


async def test_scripts_run_in_the_box_and_are_brought_there_once(box, world, tmp_path):
    script = tmp_path / "verify.py"
    script.write_text(
        textwrap.dedent("""
        # /// script
        # requires-python = ">=3.9"
        # ///
        import os, sys
        print(sys.argv[1:], os.environ["GIVEN"], sys.stdin.read(), os.getcwd(), flush=True)
        sys.exit(7)
        """).lstrip()
    )
    fresh = await box.inspect()
    before = len(world.commands)
    for warm in (False, True, "shared"):
        result = await box.run_script(
            script, ["a b"], env={"GIVEN": "here"}, stdin=b"input", timeout_s=PATIENCE_S, warm=warm
        )
        words = f"['a b'] here input {box.config.directory}/workspace\n"
        assert (result.ending, result.exit_code, result.text) == (Ending.EXITED, 7, words), result
    assert sum("uv venv" in " ".join(line) for line in world.commands[before:]) == 1
    await box.reset()
    assert differences(fresh, await box.inspect()) == [], "what we bring into the box is not what a user leaves"
    await sh(box, "echo 'print(1)' > \"$(find $HOME/../scripts -name verify.py)\"")
    await box.reset()
    assert any("scripts" in line for line in differences(fresh, await box.inspect())), "a changed verifier is told"


def test_boxes_work_on_both_loops(make, on_loop):
    async def one():
        async with make() as runtime:
            return (await runtime.run(["cat"], stdin=b"hello", timeout_s=PATIENCE_S)).stdout

    assert on_loop(one()) == b"hello"
