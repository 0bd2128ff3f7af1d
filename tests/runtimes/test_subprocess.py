"""The subprocess box: the published promises on both loops, and what it states beyond them."""

import asyncio
import os
import resource
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollwright.runtimes import Ending, SubprocessConfig, SubprocessRuntime
from rollwright.runtimes.journal import Journal
from rollwright.runtimes.local import census
from rollwright.runtimes.local.census import MARK
from rollwright.runtimes.testing import PROMISES, check_promise, check_runtime, sh
from rollwright.wire import RuntimeFault, RuntimeLost


@pytest.mark.parametrize("name", PROMISES)
def test_the_subprocess_box_keeps_its_promises(name, on_loop):
    on_loop(check_promise(name, SubprocessRuntime))


class _Deaf(SubprocessRuntime):
    """Breaks two promises on purpose."""

    async def run(self, argv, **options):
        return await super().run(argv, **{**options, "stdin": b"", "env": dict(os.environ)})


async def test_the_check_finds_a_box_that_breaks_its_promises():
    honest = {"host_variables_stay_outside", "stdin_ends"}
    with pytest.raises(AssertionError) as caught:
        await check_runtime(_Deaf, skip=frozenset(PROMISES) - honest)
    assert "2 of" in str(caught.value)
    assert all(name in str(caught.value) for name in honest)


async def test_the_environment_is_exactly_the_allow_list(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name != "PATH":
            monkeypatch.delenv(name)
    monkeypatch.setenv("LC_CTYPE", "C.UTF-8")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("WANTED", "yes")
    config = SubprocessConfig(directory=str(tmp_path), allow_env=("WANTED",))
    async with SubprocessRuntime(config, journal=Journal(tmp_path / "journal")) as box:
        seen = (await box.run(["env", "-0"], env={"GIVEN": "1"})).text.rstrip("\0").split("\0")
    names = {line.split("=")[0] for line in seen}
    assert names == {"PATH", "LC_CTYPE", "WANTED", "GIVEN", "HOME", "TMPDIR", "PWD", MARK}


@settings(max_examples=15)
@given(st.binary(max_size=200_000), st.integers(0, 150_000))
def test_bytes_in_are_bytes_out(data, limit):
    async def round_trip():
        async with SubprocessRuntime() as box:
            return await box.run(["cat"], stdin=data, output_limit=limit)

    result = asyncio.run(round_trip())
    assert result.stdout == data[:limit]
    assert result.stdout_dropped == len(data) - len(result.stdout)


def test_a_hundred_runs_leave_no_descriptor_and_no_zombie(on_loop, open_fds, own_children):
    on_loop(_hundred_runs(open_fds, own_children))


async def _hundred_runs(open_fds, own_children):
    async with SubprocessRuntime() as box:
        await _hundred_runs_in(box, open_fds, own_children)


async def _hundred_runs_in(box, open_fds, own_children):
    await box.run(["true"])
    fds, children = open_fds(), own_children()
    await asyncio.gather(*(box.run(["sh", "-c", "cat; echo >&2"], stdin=b"x" * 100_000) for _ in range(60)))
    await asyncio.gather(*(box.run(["sleep", "1000"], timeout_s=0.01) for _ in range(20)))
    cancelled = [asyncio.create_task(box.run(["sleep", "1000"])) for _ in range(20)]
    await box.run(["true"])
    for task in cancelled:
        task.cancel()
    ends = await asyncio.gather(*cancelled, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
    assert (open_fds(), own_children()) == (fds, children)
    assert "0 active" in repr(box)


_DAEMON = """
import os, sys
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
{leave}
with open(sys.argv[1], "w") as told: told.write(str(os.getpid()))
os.execve("/bin/sleep", ["sleep", "1000"], {env})
"""


def _alive(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("leave", "env"),
    [("os.chdir('/')", "dict(os.environ)"), ("", "{}")],
    ids=["keeps the mark, leaves the directory", "drops the mark, stays in the directory"],
)
async def test_double_forked_daemons_end_with_the_box(box, leave, env):
    await box.run(["mkfifo", "pid"])
    starting = asyncio.create_task(
        box.run([sys.executable, "-c", _DAEMON.format(leave=leave, env=env), str(Path(box._box.workspace, "pid"))])
    )
    pid = int(await sh(box, "cat pid"))
    assert (await starting).ok
    assert _alive(pid)
    await box.reset()
    assert not _alive(pid)


async def test_a_timeout_ends_children_that_left_the_session_without_the_mark(box):
    hidden = "env -i setsid sleep 1000 & echo $!; sleep 1000"
    async with await box.open_process(["sh", "-c", hidden]) as process:
        pid = int(await process.read(100))
        assert (await process.wait(timeout_s=0.05)).ending is Ending.TIMED_OUT
    assert not _alive(pid)


async def test_a_port_is_free_after_reset(box):
    listen = "import socket,time; s=socket.socket(); s.bind(('127.0.0.1',0)); s.listen(); print(s.getsockname()[1])"
    program = [sys.executable, "-uc", listen + "; time.sleep(1000)"]
    async with await box.open_process(program) as process:
        port = int(await process.read(100))
        assert await box.expose(port) == f"http://127.0.0.1:{port}"
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await writer.wait_closed()
        await box.reset()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_paths_do_not_leave_the_box(box, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("secret")
    await sh(box, f"ln -s {outside} link; ln -s {tmp_path} dir; ln -s ../home/in inner")
    for path in ("../../outside", str(outside), "link", "dir/outside", "/etc/passwd", "..", "a\0b"):
        with pytest.raises(RuntimeFault):
            await box.read(path)
        with pytest.raises(RuntimeFault):
            await box.write(path, b"overwritten")
    with pytest.raises(RuntimeFault):
        await box.run(["true"], cwd="dir")
    assert outside.read_text() == "secret"
    await box.write("inner", b"through a link that stays inside")
    assert await sh(box, 'cat "$HOME/in"') == "through a link that stays inside"


async def test_a_file_over_the_limit_is_refused(tmp_path):
    async with SubprocessRuntime(SubprocessConfig(directory=str(tmp_path), read_limit=10)) as box:
        await box.write("ten", b"0123456789")
        assert len(await box.read("ten")) == 10
        await box.write("eleven", b"0123456789a")
        with pytest.raises(RuntimeFault, match="over 10 bytes"):
            await box.read("eleven")


async def test_limits_bind_the_program(tmp_path):
    config = SubprocessConfig(directory=str(tmp_path), memory_mb=256, file_mb=1, open_files=64, cpu_s=1)
    async with SubprocessRuntime(config) as box:
        hog = await box.run([sys.executable, "-c", "bytearray(1 << 30)"])
        assert b"MemoryError" in hog.stderr
        wide = await box.run(["sh", "-c", "head -c 3000000 /dev/zero > file"])
        assert not wide.ok
        assert len(await box.read("file")) == 1 << 20
        assert await sh(box, "ulimit -n; ulimit -c") == "64\n0\n"
        spin = await box.run(["sh", "-c", "while :; do :; done"])
        assert spin.ending is Ending.SIGNALLED
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64


@pytest.mark.parametrize("argv", [[], "true", [""], ["-x"], ["echo", "a\0b"]])
async def test_a_command_that_is_none_is_refused(box, argv):
    with pytest.raises(RuntimeFault):
        await box.run(argv)
    assert (await box.run(["true"])).ok


@pytest.mark.parametrize("env", [{"A=B": "1"}, {"": "1"}, {"A.B": "1"}, {"A": "x\0y"}])
async def test_a_variable_that_would_be_lost_is_refused(box, env):
    with pytest.raises(RuntimeFault):
        await box.run(["true"], env=env)


async def test_an_oversized_command_is_a_fault_and_leaks_nothing(box, open_fds):
    await box.run(["true"])
    before = open_fds()
    with pytest.raises(RuntimeFault, match="could not start"):
        await box.run(["echo", "x" * 3_000_000])
    assert open_fds() == before


async def test_a_cancelled_reset_never_returns_the_box(box):
    """Museum: a half-cancelled runtime goes back to idle."""
    await sh(box, "touch left")
    resetting = asyncio.create_task(box.reset())
    await asyncio.sleep(0)
    resetting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await resetting
    assert not await box.alive()
    with pytest.raises(RuntimeLost, match="broken"):
        await box.run(["true"])


async def test_a_reset_that_cannot_empty_the_box_says_so(box, monkeypatch):
    """Museum: reset errors swallowed."""

    def fail(*_):
        raise PermissionError(1, "held by the test")

    with monkeypatch.context() as patch:
        patch.setattr("rollwright.runtimes.local.boxdir.clear", fail)
        with pytest.raises(RuntimeFault, match="held by the test"):
            await box.reset()
    assert not await box.alive()


async def test_a_cancelled_stop_still_stops(tmp_path):
    box = SubprocessRuntime(SubprocessConfig(directory=str(tmp_path)))
    await box.start()
    await sh(box, "touch left; sleep 1000 > /dev/null 2>&1 &")
    stopping = asyncio.create_task(box.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert list(tmp_path.iterdir()) == []


async def test_a_cancelled_start_leaves_nothing(tmp_path):
    box = SubprocessRuntime(SubprocessConfig(directory=str(tmp_path)))
    starting = asyncio.create_task(box.start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeLost):
        await box.run(["true"])


async def test_a_box_that_is_stopped_while_it_starts_leaves_nothing(tmp_path):
    box = SubprocessRuntime(SubprocessConfig(directory=str(tmp_path)))
    starting = asyncio.create_task(box.start())
    await asyncio.sleep(0)
    await box.stop()
    with pytest.raises(RuntimeLost):
        await starting
    assert list(tmp_path.iterdir()) == []


async def test_a_place_where_no_box_can_be_made_is_a_fault(tmp_path):
    box = SubprocessRuntime(SubprocessConfig(directory=str(tmp_path / "missing")))
    with pytest.raises(RuntimeFault, match="could not make the box"):
        await box.start()
    await box.stop()


async def test_a_box_that_lost_its_directory_is_not_alive(box):
    os.rename(box._box.workspace, box._box.workspace + "-moved")
    assert not await box.alive()
    with pytest.raises(RuntimeFault):
        await box.run(["true"])


async def test_a_tree_too_deep_to_recurse_is_emptied(box):
    nest = "import os\nfor _ in range(1100): os.mkdir('d'); os.chdir('d')"
    assert (await box.run([sys.executable, "-c", nest])).ok
    await box.reset()
    assert await sh(box, "ls -A") == ""


async def test_a_box_starts_once(box):
    with pytest.raises(RuntimeFault, match="starts once"):
        await box.start()
    never = SubprocessRuntime()
    with pytest.raises(RuntimeLost, match="not started"):
        await never.run(["true"])
    await never.stop()
    assert "stopped" in repr(never)


async def test_the_loop_turns_while_many_programs_start(box):
    """A burst of starts is spread over rounds of the loop, so that others run in between."""
    rounds = 0

    async def turn():
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    await asyncio.gather(*(box.run(["true"]) for _ in range(64)))
    turning.cancel()
    assert rounds >= 64


async def test_a_process_that_ends_during_a_census_hides_no_child(box, monkeypatch):
    """It was listed and is gone; what it started meanwhile was not listed. Such a look proves nothing."""
    fork = "read -r go; setsid sleep 1000 > /dev/null 2>&1 & echo $!"
    async with await box.open_process(["sh", "-c", fork]) as process:
        feed, entries = process._command.stdin._fd, census._entries

        def listed():
            found = list(entries())
            monkeypatch.setattr(census, "_entries", entries)
            os.write(feed, b"\n")
            os.waitid(os.P_PID, process._command.child.pid, os.WEXITED | os.WNOWAIT)
            return found

        monkeypatch.setattr(census, "_entries", listed)
        await census.sweep(box._quarry(box._box.root), within_s=10)
        assert not _alive(int(await process.read(100)))
