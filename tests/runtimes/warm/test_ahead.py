"""Children that are forked before their call comes: nobody can tell, whoever dies or is cancelled when."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from rollwright.runtimes import CpuSlots, Ending, SubprocessConfig, SubprocessRuntime
from rollwright.runtimes.local import census
from rollwright.runtimes.local.census import Quarry
from rollwright.runtimes.warm import forked, keeper
from rollwright.runtimes.warm.zygotes import Zygote
from rollwright.wire import RuntimeLost

from .conftest import runs

COUNTS = "import os\nopen('began', 'a').write(f'{os.getpid()}\\n')\nprint('here')"


def _zygote():
    (zygote,) = keeper()._zygotes.values()
    return zygote


def _spares(zygote):
    """Children of the zygote that are of no box yet."""
    pids = Path(f"/proc/{zygote.pid}/task/{zygote.pid}/children").read_text().split()
    return [int(pid) for pid in pids if runs(pid) and b"ROLLWRIGHT_BOX=-" in _environ(pid)]


def _environ(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


async def _until(condition):
    async with asyncio.timeout(30):
        while not (found := condition()):
            await asyncio.sleep(0.001)
    return found


async def _with_spares(box, path):
    """Run the script until children wait for its next calls."""
    async with asyncio.timeout(30):
        while True:
            await asyncio.gather(*(box.run_script(path, warm=True) for _ in range(4)))
            if keeper()._zygotes and _spares(_zygote()):
                return _zygote()


async def test_a_spare_child_that_was_killed_gives_way_to_another(box, script, counted):
    zygote = await _with_spares(box, script("print('here')"))
    before = counted.forked
    for pid in _spares(zygote):
        os.kill(pid, signal.SIGKILL)
    await _until(lambda: not _spares(zygote))
    told = await asyncio.gather(*(box.run_script(script("print('here')"), warm=True) for _ in range(4)))
    assert [(result.text, result.exit_code) for result in told] == [("here\n", 0)] * 4
    assert (counted.forked - before, counted.cold) == (4, {})
    assert _zygote() is zygote


async def test_spare_children_end_with_their_zygote(box, script):
    zygote = await _with_spares(box, script("print('here')"))
    waiting = _spares(zygote)
    os.kill(zygote.pid, signal.SIGKILL)
    await _until(lambda: not any(runs(pid) for pid in waiting))
    assert (await box.run_script(script("print('here')"), warm=True)).text == "here\n"


async def test_a_call_that_no_child_took_runs_once(box, script, counted):
    """The zygote dies with a call in its channel: nobody has begun it, so it is run cold."""
    path = script(COUNTS)
    zygote = await _with_spares(box, path)
    await box.reset()
    os.kill(zygote.pid, signal.SIGSTOP)
    call = asyncio.create_task(box.run_script(path, timeout_s=60, warm=True))
    await _until(lambda: not zygote.idle)
    os.kill(zygote.pid, signal.SIGKILL)
    assert (await call).text == "here\n"
    assert len((await box.read("began")).split()) == 1
    assert counted.cold == {"zygote died": 1}


async def test_a_call_that_a_hanging_zygote_was_asked_for_runs_once(box, script, counted, monkeypatch):
    monkeypatch.setattr(forked, "_BIRTH_S", 0.1)
    # Stopping it stands for any way to hang, and one that is only stopped would be found out by its state.
    monkeypatch.setattr(Zygote, "stopped", lambda self: False)
    path = script(COUNTS)
    zygote = await _with_spares(box, path)
    await box.reset()
    os.kill(zygote.pid, signal.SIGSTOP)
    result = await box.run_script(path, timeout_s=3, warm=True)
    assert (result.ending, result.text) in ((Ending.TIMED_OUT, ""), (Ending.EXITED, "here\n"))
    assert len((await box.read("began")).split()) == 1
    assert counted.cold == {"zygote hangs": 1}


async def test_time_in_which_a_zygote_is_busy_is_not_counted(box, script, counted, monkeypatch):
    monkeypatch.setattr(Zygote, "stopped", lambda self: False)
    path = script("print('here')")
    zygote = await _with_spares(box, path)
    os.kill(zygote.pid, signal.SIGSTOP)
    call = asyncio.create_task(box.run_script(path, timeout_s=1.0, warm=True))
    await asyncio.wait({call}, timeout=1.5)
    os.kill(zygote.pid, signal.SIGCONT)
    result = await call
    assert (result.ending, result.text) == (Ending.EXITED, "here\n")
    assert counted.cold == {}


async def test_calls_that_are_cancelled_while_they_wait_do_not_run(tmp_path, script):
    path = script("import os, sys\nopen(sys.argv[1], 'w').close()\nwhile not os.path.exists('go'): pass")
    slots = CpuSlots(1)
    async with SubprocessRuntime(SubprocessConfig(directory=str(tmp_path)), slots=slots) as box:
        workspace = Path(box._running().workspace)
        calls = [asyncio.create_task(box.run_script(path, ["ran0"], warm=True))]
        await _until((workspace / "ran0").exists)
        calls += [asyncio.create_task(box.run_script(path, [f"ran{n}"], warm=True)) for n in (1, 2, 3)]
        await _until(lambda: repr(slots) == "<CpuSlots 1 of 1 taken, 3 waiting>")
        for call in calls[1:3]:
            call.cancel()
        await asyncio.wait(calls[1:3])
        (workspace / "go").touch()
        assert [(await calls[n]).ending for n in (0, 3)] == [Ending.EXITED] * 2
        assert sorted(path.name for path in workspace.iterdir()) == ["go", "ran0", "ran3"]
        assert repr(slots) == "<CpuSlots 0 of 1 taken, 0 waiting>"
        await keeper().close()


async def test_a_child_that_was_there_before_its_box_belongs_to_it(tmp_path, script):
    """A census takes whoever was there before a box for a stranger; one that comes later is told to it."""
    path = script(
        "import os, sys, time\nif sys.argv[1:]:\n    open('began', 'w').write(str(os.getpid()))\n"
        "    os.rename('began', 'ready')\n    time.sleep(1000)"
    )
    config = SubprocessConfig(directory=str(tmp_path))
    async with SubprocessRuntime(config) as first:
        waiting = _spares(await _with_spares(first, path))
        await census.sweep(Quarry("nobody/", "", 0.0), within_s=10)  # All that is there now was seen.
        async with SubprocessRuntime(config) as second:
            call = asyncio.create_task(second.run_script(path, ["stay"], timeout_s=1000, warm=True))
            ready = Path(second._running().workspace, "ready")
            await _until(ready.exists)
            pid = int(ready.read_text())
            assert pid in waiting
            assert [told for told in (await second.inspect()).processes if str(pid) in told]
            await second.reset()
            with pytest.raises(RuntimeLost):
                await call
            assert not runs(pid)
        await keeper().close()


LOOKS = """
import os, random, sys, threading
print(sorted(os.listdir('/proc/self/fd')), sys.stdin.read(), os.getcwd())
print(threading.main_thread().native_id == os.getpid() == threading.get_native_id(), threading.active_count())
print(os.getpgid(0) == os.getsid(0), sorted(n for n in os.environ if n != 'ROLLWRIGHT_BOX'))
print(random.random(), file=sys.stderr)
pid = os.fork()
if not pid:
    print(random.random(), file=sys.stderr)
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


async def test_a_child_that_waited_looks_like_a_cold_one(box, script, counted):
    path = script(LOOKS)
    cold = await box.run_script(path, stdin=b"in", timeout_s=60)
    told = await asyncio.gather(*(box.run_script(path, stdin=b"in", timeout_s=60, warm=True) for _ in range(12)))
    assert {(result.text, result.exit_code) for result in told} == {(cold.text, cold.exit_code)}
    assert len({word for result in told for word in result.stderr.split()}) == 24  # No number comes twice.
    assert counted.forked == 12


async def test_who_asks_to_be_called_after_a_fork_is_called(box, script, tmp_path, counted):
    (tmp_path / "asks.py").write_text(
        "import os\nSAID = []\nos.register_at_fork(after_in_child=lambda: SAID.append(1))"
    )
    path = script("import asks, os\nprint(len(asks.SAID), os.register_at_fork.__module__)")
    told = [(await box.run_script(path, warm=True)).text for _ in range(3)]
    assert (told, counted.forked) == (["1 posix\n"] * 3, 3)
