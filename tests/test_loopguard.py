# ruff: noqa: ASYNC220, ASYNC221, ASYNC251
"""The guard fails what blocks a loop, on asyncio and on uvloop, and nothing else."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from loopguard import LoopGuard
from rollwright.telemetry import new_event_loop

# Offences are made on purpose here, under a guard of the test's own.
pytestmark = pytest.mark.blocks_loop

LOOPS = [asyncio.new_event_loop, new_event_loop]


def spin(cpu_s=0.15):
    """Use the CPU for this long, whatever the clock on the wall says."""
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass


def offences(main, factory):
    """What the guard says about a run of `main()`."""
    guard = LoopGuard()
    guard.install()
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())
    finally:
        guard.remove()
    return guard.offences


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def factory(request):
    return request.param


async def busy_step():
    spin()


async def busy_timer():
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.call_later(0.001, lambda: (spin(), done.set()))
    await done.wait()


async def busy_callback_from_a_thread():
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(loop.call_soon_threadsafe, lambda: (spin(), done.set()))
    await done.wait()


async def busy_reader():
    ours, theirs = socket.socketpair()
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    with ours, theirs:
        loop.add_reader(ours, lambda: (spin(), loop.remove_reader(ours), done.set()))
        theirs.send(b"x")
        await done.wait()


async def sleeps():
    time.sleep(0.11)


async def sleeps_in_small_steps():
    for _ in range(12):
        time.sleep(0.01)


async def runs_a_program():
    subprocess.run(["true"], check=True)


async def waits_for_a_child():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=0.001)
        child.stdin.close()


async def reads_the_output_of_a_program():
    subprocess.check_output(["true"])


async def calls_system():
    os.system("true")


async def connects():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        pass


async def receives():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")
        ours.recv(1)


BLOCKING = {
    busy_step: "a step of busy_step",
    busy_timer: "CPU",
    busy_callback_from_a_thread: "CPU",
    busy_reader: "CPU",
    sleeps: "time.sleep",
    sleeps_in_small_steps: "time.sleep",
    runs_a_program: "communicate",
    waits_for_a_child: "child process",
    reads_the_output_of_a_program: "communicate",
    calls_system: "os.system",
    connects: "connect on a blocking socket",
    receives: "recv on a blocking socket",
}


@pytest.mark.parametrize("main", BLOCKING, ids=lambda main: main.__name__)
def test_what_blocks_is_named(main, factory):
    found = offences(main, factory)
    assert any(BLOCKING[main] in offence for offence in found), found


async def many_short_steps():
    for _ in range(10):
        spin(0.03)
        await asyncio.sleep(0)


async def busy_thread_beside_the_loop():
    await asyncio.to_thread(spin)
    await asyncio.to_thread(time.sleep, 0.11)
    await asyncio.to_thread(subprocess.run, ["true"], check=True)


async def asks_a_program_as_one_should():
    child = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    assert (await child.communicate(b"hello"))[0] == b"hello"


async def talks_over_sockets_as_one_should():
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await reader.read() == b""
        writer.close()


async def waits_on_the_wall_without_cpu():
    ours, theirs = os.pipe()
    threading.Timer(0.15, os.write, (theirs, b"x")).start()
    os.read(ours, 1)
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    "main",
    [
        many_short_steps,
        busy_thread_beside_the_loop,
        asks_a_program_as_one_should,
        talks_over_sockets_as_one_should,
        waits_on_the_wall_without_cpu,
    ],
    ids=lambda main: main.__name__,
)
def test_what_does_not_block_passes(main, factory):
    assert offences(main, factory) == []


def test_a_slow_first_import_is_excused(factory, tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text(
        "import time\nend = time.thread_time() + 0.15\nwhile time.thread_time() < end: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    async def main():
        import slow_to_import

        assert slow_to_import.end

    try:
        assert offences(main, factory) == []
    finally:
        sys.modules.pop("slow_to_import", None)


def test_a_garbage_collection_is_excused(factory):
    """The collector is made slow by a callback of its own, which runs inside the collection that the guard measures."""

    async def main():
        gc.collect()

    def slow(phase, info):
        if phase == "start":
            spin()

    guard = LoopGuard()
    guard.install()
    gc.callbacks.append(slow)
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())
    finally:
        gc.callbacks.remove(slow)
        guard.remove()
    assert guard.offences == []


def test_a_process_that_is_stopped_is_not_blamed(factory):
    """SIGSTOP in the middle of a callback: 300 ms on the wall, none of CPU."""
    script = f"""
        import asyncio, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from loopguard import LoopGuard
        from rollwright.telemetry import new_event_loop
        async def main():
            print("ready", flush=True)
            sys.stdin.readline()
        guard = LoopGuard()
        guard.install()
        with asyncio.Runner(loop_factory={"new_event_loop" if factory is new_event_loop else "None"}) as runner:
            runner.run(main())
        print(guard.offences, flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGSTOP)
        # Not a wait for something: this is the length of the outage.
        time.sleep(0.3)
        child.send_signal(signal.SIGCONT)
        assert child.communicate("go on\n", timeout=30)[0] == "[]\n"


def test_removing_the_guard_leaves_no_trace():
    def state():
        return (
            time.sleep,
            os.system,
            subprocess.Popen.wait,
            socket.socket.connect,
            asyncio.Handle._run,
            len(gc.callbacks),
        )

    before = state()
    guard = LoopGuard()
    guard.install()
    assert state() != before
    guard.remove()
    assert state() == before


PROJECT = """
    import asyncio, time, pytest
    from hypothesis import given, settings, strategies as st

    def spin():
        until = time.thread_time() + 0.15
        while time.thread_time() < until:
            pass

    async def test_blocks():
        time.sleep(0.11)

    async def test_computes():
        spin()

    @pytest.mark.blocks_loop
    async def test_blocks_on_purpose():
        time.sleep(0.11)

    async def test_is_fine():
        await asyncio.sleep(0)

    def test_without_a_loop():
        time.sleep(0.11)
        spin()

    @pytest.fixture
    def slow_fixture():
        spin()
        time.sleep(0.11)
        yield
        spin()

    async def test_with_a_slow_fixture(slow_fixture):
        await asyncio.sleep(0)

    @pytest.fixture
    async def blocking_fixture():
        time.sleep(0.11)

    async def test_with_a_blocking_fixture(blocking_fixture):
        pass

    @given(st.lists(st.integers(), max_size=3).map(lambda xs: (spin(), xs)[1]))
    @settings(max_examples=3, deadline=None, database=None)
    async def test_hypothesis_thinks_between_the_loops(values):
        await asyncio.sleep(0)

    async def test_own_failure_is_shown():
        time.sleep(0.11)
        assert 1 == 2, "own reason"
"""


def test_as_a_plugin_it_fails_the_right_tests(tmp_path):
    (tmp_path / "test_project.py").write_text(textwrap.dedent(PROJECT))
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    command = [sys.executable, "-m", "pytest", "-p", "loopguard", "-p", "no:cacheprovider", "-rA", "-q", "--tb=short"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    verdicts = dict(
        reversed(line.split(" - ")[0].split(" test_project.py::"))
        for line in result.stdout.splitlines()
        if line.startswith(("PASSED ", "FAILED ", "ERROR "))
    )
    assert verdicts == {
        "test_blocks": "FAILED",
        "test_computes": "FAILED",
        "test_blocks_on_purpose": "PASSED",
        "test_is_fine": "PASSED",
        "test_without_a_loop": "PASSED",
        "test_with_a_slow_fixture": "PASSED",
        "test_with_a_blocking_fixture": "ERROR",
        "test_hypothesis_thinks_between_the_loops": "PASSED",
        "test_own_failure_is_shown": "FAILED",
    }, result.stdout
    assert "own reason" in result.stdout
    assert "time.sleep(0.11)" in result.stdout
