"""What the network and the vendor do to a box: refusals, cuts, deadlines, loss. Nothing runs twice, nothing hangs."""

import asyncio
import time
from contextlib import suppress

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver

from rollwright.runtimes import Ending
from rollwright.runtimes.asking import FETCH, served, sh
from rollwright.runtimes.prime import sdk
from rollwright.runtimes.prime.sweeping import sweep
from rollwright.wire import RuntimeFault, RuntimeLost, UsageError


async def test_a_refused_creation_is_tried_again_with_the_same_key(vendor, make):
    vendor.faults["create"] = [(429, {"Retry-After": "0.05"}), 500, "cut after"]
    async with make() as box:
        assert (await box.run(["echo", "up"])).stdout == b"up\n"
    keys = [asked["idempotency_key"] for asked in vendor.requests]
    assert (vendor.counts["create"], len(set(keys)), len(vendor.sandboxes)) == (4, 1, 1)


async def test_a_creation_that_can_never_succeed_is_told_at_once(vendor, make, journal):
    vendor.faults["create"] = [422]
    with pytest.raises(RuntimeFault, match="422"):
        await make().start()
    assert vendor.counts["create"] == 1
    assert list(journal.entries()) == []


async def test_creation_gives_up_at_its_deadline(vendor, make):
    vendor.faults["create"] = [(429, {"Retry-After": "3600"})]
    with pytest.raises(RuntimeFault, match="no box was created after 1 tries"):
        await make(start_timeout_s=20).start()


async def test_creation_follows_the_pace(vendor, make):
    """The eleventh box of a burst waits for its turn, which is an hour away here."""
    boxes = [make(creates_per_minute=1 / 60, start_timeout_s=20) for _ in range(11)]
    async with asyncio.TaskGroup() as group:
        for box in boxes[:10]:
            group.create_task(box.start())
    late = make(start_timeout_s=0.2)
    with pytest.raises(RuntimeFault, match=r"no box was created within .* \(1 tries\)"):
        await late.start()
    assert vendor.counts["create"] == 10
    async with asyncio.TaskGroup() as group:
        for box in boxes[:10]:
            group.create_task(box.stop())


async def test_a_cancelled_start_leaves_no_box(vendor, make, journal):
    vendor.faults["status:batchGet"] = ["hang"]
    starting = asyncio.create_task(make().start())
    while "status:batchGet" not in vendor.counts:
        await asyncio.sleep(0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert vendor.running() == []
    assert list(journal.entries()) == []


@pytest.mark.parametrize("fault", ["cut", "cut after", 503])
async def test_a_command_whose_answer_is_lost_runs_once(vendor, make, fault):
    async with make() as box:
        vendor.faults["start"] = [fault]
        result = await box.run(["sh", "-c", "echo ran >> log; cat; exit 3"], stdin=b"in")
        assert (result.ending, result.exit_code, result.stdout) == (Ending.EXITED, 3, b"in")
        assert await box.read("log") == b"ran\n"


async def test_a_command_that_is_asked_for_twice_runs_once(vendor, make):
    async with make() as box:
        shell = box._box.shell
        for _ in range(2):
            result = await shell.run_numbered(77, ["sh", "-c", "echo ran >> log; echo out"], {}, b"", "", 10, 1000)
            assert result.stdout == b"out\n"
            shell._done.clear()
        assert await box.read("log") == b"ran\n"


async def test_a_command_that_was_called_off_before_it_arrived_never_runs(vendor, make):
    async with make() as box:
        shell = box._box.shell
        await shell.kill(78)
        answer = await box._box._link.execute(
            await shell.command_line("run", 78, ["touch", "ran"], {}, "", 1000, "10"), {}, 10
        )
        assert answer == b"rollwright again\n"
        with pytest.raises(RuntimeFault, match="no such file"):
            await box.read("ran")


async def test_a_directory_that_is_not_there_is_a_fault(vendor, make):
    async with make() as box:
        with pytest.raises(RuntimeFault, match="working directory"):
            await box.run(["true"], cwd="nowhere")
        async with await box.open_process(["true"], cwd="nowhere") as process:
            with pytest.raises(RuntimeFault, match="working directory"):
                await process.wait(timeout_s=20)


async def test_a_request_of_the_last_user_does_not_reach_the_next(vendor, make):
    async with make(reset="clean") as box:
        shell, link = box._box.shell, box._box._link
        late = await shell.command_line("run", 79, ["touch", "late"], {}, "", 1000, "10")
        await box.reset()
        assert await link.execute(late, {}, 10) == b"rollwright again\n"
        with pytest.raises(RuntimeFault, match="no such file"):
            await box.read("late")


async def test_writes_and_uploads_survive_cuts(vendor, make):
    async with make() as box:
        vendor.faults["start"] = ["cut", "cut after"]
        await box.write("small", b"s" * 1000)
        vendor.faults["upload"] = ["cut after"]
        await box.write("big", b"b" * 200_000)
        assert (await box.read("small"), await box.read("big")) == (b"s" * 1000, b"b" * 200_000)


async def test_a_long_command_line_arrives_whole(vendor, make):
    words = ["x" * 60_000, "'y" * 30_000]
    async with make() as box:
        result = await box.run(["printf", "%s\\n", *words], output_limit=200_000)
    assert result.stdout.decode().split("\n")[:-1] == words


@pytest.mark.parametrize("how", ["forgotten", "timeout", "oom"])
async def test_a_box_that_the_vendor_ended_is_lost(vendor, make, how):
    async with make() as box:
        assert await box.alive()
        [sandbox_id] = vendor.running()
        if how == "forgotten":
            await vendor.forget(sandbox_id)
        else:
            await vendor.end(
                sandbox_id, "TIMEOUT" if how == "timeout" else "ERROR", "OOM_KILLED" if how == "oom" else "TIMEOUT"
            )
        assert not await box.alive()
        for work in (box.run(["true"]), box.read("x"), box.write("x", b""), box.open_process(["true"]), box.inspect()):
            with pytest.raises(RuntimeLost):
                await work


async def test_a_command_in_a_box_that_dies_is_lost(vendor, make):
    async with make() as box:
        running = asyncio.create_task(box.run(["sh", "-c", "touch begun; sleep 1000"], timeout_s=1000))
        while not (await box.run(["ls"])).stdout:
            pass
        [sandbox_id] = vendor.running()
        await vendor.end(sandbox_id, "TIMEOUT", "TIMEOUT")
        with pytest.raises(RuntimeLost):
            await running


@pytest.mark.parametrize("setting", ["lifetime_minutes", "idle_minutes"])
async def test_a_box_past_its_time_is_lost_on_both_sides(vendor, make, setting):
    async with make(**{"lifetime_minutes": 60, setting: 5}) as box:
        assert (await box.run(["true"])).ok
        ahead = 301.0
        vendor.clock = lambda: time.monotonic() + ahead
        with suppress(RuntimeLost):  # The last word of the first command may come late, and is no idleness.
            await box.run(["true"])
            ahead += 301.0
        with pytest.raises(RuntimeLost):  # The vendor says so.
            await box.run(["true"])
        assert not await box.alive()
        box._box.lifetime._clock = vendor.clock
        with pytest.raises(RuntimeLost, match="past its lifetime or idle time"):  # And so do our own books.
            await box.run(["true"])


async def test_a_silent_vendor_is_not_waited_for_past_the_lifetime(vendor, make):
    async with make(lifetime_minutes=1) as box:
        box._box.lifetime._margin_s = -59.8  # As if the minute were over in a moment, and the vendor took no notice.
        vendor.faults["start"] = ["hang"]
        with pytest.raises(RuntimeLost, match="did not answer"):
            await box.run(["true"], timeout_s=1000)


async def test_a_broken_stream_is_told_not_patched(vendor, make):
    async with make() as box, await box.open_process(["sh", "-c", "echo one; sleep 1000"]) as process:
        assert await process.read() == b"one\n"
        for connection in list(vendor._runner.server.connections):
            connection.transport.abort()
        with pytest.raises(RuntimeFault, match="lost on the way"):
            await process.wait(timeout_s=20)


class _Loopback(AbstractResolver):
    async def resolve(self, host, port=0, family=0):
        return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": family, "proto": 0, "flags": 0}]

    async def close(self):
        pass


async def test_an_exposed_port_is_reached_and_closed_with_the_box(vendor, make):
    connector = aiohttp.TCPConnector(resolver=_Loopback())
    async with make() as box, aiohttp.ClientSession(connector=connector) as web:
        await box.write("index.html", b"from the box")
        async with await box.open_process(
            ["python3", "-u", "-m", "http.server", "8123", "--bind", "127.0.0.1"]
        ) as server:
            assert b"Serving" in await server.read()
            url = await box.expose(8123)
            assert await box.expose(8123) == url
            async with web.get(f"{url}/index.html") as answer:
                assert await answer.read() == b"from the box"
            await box.expose(8124)
            assert len(vendor.networks) == 1
            async with web.get(url.replace("8123", "8125")) as answer:
                assert answer.status == 404


async def test_the_key_stays_outside(vendor, make):
    async with make() as box:
        seen = await box.run(["sh", "-c", "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; env"])
        assert vendor.key.encode() not in seen.stdout
        assert len(seen.stdout) > 100
    assert vendor.key not in str(vendor.requests)


async def test_a_sweep_frees_what_a_killed_owner_left(vendor, make, journal):
    box = make()
    await box.start()
    await box.expose(8123)
    [entry] = journal.entries()
    assert entry.clues["id"] == vendor.running()[0]
    assert len(vendor.networks) == 1
    for clues in (entry.clues, {"label": box.name}, entry.clues):
        await sweep(clues)
        assert (vendor.running(), vendor.networks) == ([], {})
    await box.stop()


async def test_a_sweep_finds_a_box_whose_id_was_never_learned(vendor, make):
    box = make()
    await box.start()
    await sweep({"label": box.name})
    assert vendor.running() == []
    await box.stop()


async def test_a_reset_by_replacing_is_a_new_box(vendor, make):
    async with make() as box:
        before = vendor.running()[0]
        await box.run(["touch", "/mnt/elsewhere"])
        await box.reset()
        assert vendor.running()[0] != before
        assert not (await box.run(["test", "-e", "/mnt/elsewhere"])).ok


async def test_an_address_ends_with_its_user(vendor, make):
    async with make(reset="clean") as box:
        url = await box.expose(8123)
        await box.reset()
        assert vendor.networks == {}
        vendor.faults["delete"] = [503] * 9
        assert await box.expose(8123) == url, "the box is the same, and so is its name"
        with pytest.raises(RuntimeFault, match="may still be there"):
            await box.reset()
        vendor.faults.clear()


async def test_a_reset_that_fails_leaves_a_box_that_can_only_be_stopped(vendor, make):
    async with make() as box:
        vendor.faults["create"] = [422]
        with pytest.raises(RuntimeFault):
            await box.reset()
        with pytest.raises(RuntimeLost, match="broken"):
            await box.run(["true"])
        assert vendor.running() == []


async def test_scripts_run_with_what_the_image_has(vendor, make, tmp_path):
    script = tmp_path / "score.py"
    script.write_text(
        "import sys, os\nprint(sys.argv[1:], sys.stdin.read(), os.environ['X'], os.getcwd())\nsys.exit(3)\n"
    )
    async with make() as box:
        for warm in (False, True, "shared"):
            result = await box.run_script(script, ["a b"], env={"X": "y"}, stdin=b"in", warm=warm)
            assert result.stdout == b"['a b'] in y /var/rollwright/workspace\n"
            assert result.exit_code == 3
        await box.reset()
        assert (await box.run_script(script, env={"X": "y"})).exit_code == 3


async def test_a_missing_key_is_the_persons(vendor, make, monkeypatch):
    monkeypatch.delenv("PRIME_API_KEY")
    with pytest.raises(UsageError, match="PRIME_API_KEY"):
        await make().start()


async def test_a_wrong_key_is_told(vendor, make, monkeypatch):
    monkeypatch.setenv("PRIME_API_KEY", "wrong")
    with pytest.raises(RuntimeFault, match="401"):
        await make().start()


async def test_a_public_address_can_stand_in_for_the_relay(vendor, make):
    async with make(forward_via="https://host.example/{port}/") as box:
        assert await box.forward(8000) == "https://host.example/8000"


@pytest.mark.parametrize("what", ["start", "reset"])
async def test_a_stop_while_a_box_is_made_leaves_none(vendor, make, journal, monkeypatch, what):
    asked, go_on, create = asyncio.Event(), asyncio.Event(), sdk.create

    async def slowly(*args):
        asked.set()
        await go_on.wait()
        return await create(*args)

    box = make()
    if what == "reset":
        await box.start()
    monkeypatch.setattr(sdk, "create", slowly)
    making = asyncio.create_task(getattr(box, what)())
    async with asyncio.timeout(30):
        await asked.wait()
        stopping = asyncio.create_task(box.stop())
        await asyncio.sleep(0)
        go_on.set()
        await stopping
        with pytest.raises(RuntimeLost, match="was stopped while it was made"):
            await making
    assert vendor.running() == []
    assert list(journal.entries()) == []


async def test_a_relay_that_broke_is_closed_before_another_begins(vendor, make):
    async with make() as box, served("hello") as port:
        await box.forward(port)
        tunnel = box._box._tunnels[port][0]
        tunnel._break()
        url = await box.forward(port)
        assert not tunnel._tasks
        assert await sh(box, FETCH.replace("URL", f"{url}/")) == "hello"
