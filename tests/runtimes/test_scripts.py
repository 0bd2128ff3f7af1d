"""PEP 723 scripts: provisioned once, compiled, run in the box, with queueing told apart."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rollwright.runtimes import CpuSlots, Ending, SubprocessConfig, SubprocessRuntime
from rollwright.runtimes.provision import cache_dir, interpreters, needs_of, provision
from rollwright.runtimes.testing import sh
from rollwright.wire import RuntimeFault, RuntimeLost

PLAIN = """# /// script
# requires-python = ">=3.11"
# dependencies = []
# ///
import os, sys
print(sys.argv[1:], os.getcwd() == os.environ["PWD"], os.environ.get("GIVEN"), sys.stdin.read(), sys.flags.isolated)
print("err", file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "a script.py"
    path.write_text(PLAIN)
    return path


@pytest.fixture
def uv_calls(monkeypatch):
    """What uv is asked to do, while it does it."""
    calls = []
    original = interpreters.run_uv

    async def counted(*words):
        calls.append(words[0])
        await original(*words)

    monkeypatch.setattr(interpreters, "run_uv", counted)
    return calls


@pytest.mark.parametrize("warm", [False, True, "shared"])
async def test_a_script_answers_the_same_however_warm(box, cache, script, warm):
    env = {"GIVEN": "g"}
    result = await box.run_script(script, ["a b", "$c"], env=env, stdin=b"in", timeout_s=30, warm=warm)
    assert result.text == "['a b', '$c'] True g in 0\n"
    assert (result.stderr, result.exit_code, result.ending) == (b"err\n", 3, Ending.EXITED)


async def test_scripts_of_a_stopped_box_are_lost(cache, script):
    box = SubprocessRuntime()
    await box.start()
    await box.stop()
    with pytest.raises(RuntimeLost):
        await box.run_script(script)


async def test_a_burst_provisions_once(cache, script, uv_calls):
    pythons = await asyncio.gather(*(provision(script) for _ in range(64)))
    assert uv_calls == ["venv"]
    assert len(set(pythons)) == 1
    assert pythons[0].is_relative_to(cache)
    assert repr(interpreters._flights) == "<Flights 0 flying>"


async def test_the_body_of_a_script_does_not_change_its_interpreter(cache, script, uv_calls):
    before = await provision(script)
    script.write_text(PLAIN + "\n# edited")
    assert await provision(script) == before
    script.write_text(PLAIN.replace('">=3.11"', '">=3.10"'))
    assert await provision(script) != before
    assert uv_calls == ["venv", "venv"]


async def test_a_build_that_was_killed_is_built_anew(cache, script, uv_calls):
    python = await provision(script)
    place = python.parent.parent
    (place / ".rollwright-ready").unlink()
    (place / "half").write_text("left by a kill")
    assert await provision(script) == python
    assert not (place / "half").exists()
    python.unlink()
    assert await provision(script) == python, "an environment whose interpreter is gone is built anew"
    assert uv_calls == ["venv"] * 3


async def test_a_cancelled_waiter_leaves_the_work_to_the_others(cache, script, uv_calls):
    first, second = (asyncio.create_task(provision(script)) for _ in range(2))
    while not uv_calls:
        await asyncio.sleep(0)
    first.cancel()
    assert (await second).exists()
    assert first.cancelled()
    assert uv_calls == ["venv"]


async def test_when_all_waiters_leave_the_work_ends(cache, script, uv_calls, own_children):
    before = own_children()
    only = asyncio.create_task(provision(script))
    while not uv_calls:
        await asyncio.sleep(0)
    only.cancel()
    with pytest.raises(asyncio.CancelledError):
        await only
    assert own_children() == before
    assert repr(interpreters._flights) == "<Flights 0 flying>"
    assert (await provision(script)).exists()


async def test_provisioning_has_a_deadline(cache, script):
    with pytest.raises(RuntimeFault, match="within 0 s"):
        await provision(script, timeout_s=0)


async def test_a_failing_install_tells_uvs_last_words(cache, tmp_path):
    script = tmp_path / "s.py"
    script.write_text('# /// script\n# dependencies = ["no-such-package @ file:///nowhere/at-all"]\n# ///\n')
    with pytest.raises(RuntimeFault, match=r"(?s)uv pip ended with.*nowhere"):
        await provision(script)


async def test_a_dependency_is_installed_and_compiled(box, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    script = tmp_path / "s.py"
    script.write_text(
        '# /// script\n# dependencies = ["iniconfig"]\n# ///\nimport iniconfig\nprint(iniconfig.__file__)'
    )
    try:
        python = await provision(script, timeout_s=60)
    except RuntimeFault as error:
        pytest.skip(f"the package index cannot be reached: {error}")
    assert list(python.parent.parent.rglob("iniconfig/__pycache__/__init__.*.pyc"))
    result = await box.run_script(script, timeout_s=30)
    assert result.text.startswith(str(cache)), result


def _provisioner(script, cache):
    words = [sys.executable, "-m", "rollwright.runtimes.provision", str(script)]
    env = {**os.environ, "ROLLWRIGHT_CACHE_DIR": str(cache)}
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_racing_processes_agree(script, cache):
    racers = [_provisioner(script, cache) for _ in range(3)]
    answers = [racer.communicate(timeout=60) for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0, 0], answers
    assert len({out for out, _ in answers}) == 1
    assert {err for _, err in answers} == {""}
    assert Path(answers[0][0].strip()).exists()


def test_a_killed_process_frees_its_lock(script, cache):
    first = _provisioner(script, cache)
    while first.poll() is None and not list(cache.glob("scripts/*.lock")):
        pass
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    second = _provisioner(script, cache)
    out, err = second.communicate(timeout=60)
    assert (second.returncode, err) == (0, "")
    assert Path(out.strip()).exists()


@pytest.mark.parametrize(("words", "code"), [([], 2), (["--bad"], 2), (["--help"], 0), (["/no/such/script.py"], 1)])
def test_the_entry_point_speaks_in_exit_codes(words, code, capsys, cache):
    from rollwright.runtimes.provision.__main__ import main

    assert main(words) == code
    told = capsys.readouterr()
    assert bool(told.err) == (code != 0)
    assert "Traceback" not in told.err


def test_the_cache_directory_follows_the_environment(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.delenv("ROLLWRIGHT_CACHE_DIR", raising=False)
    assert cache_dir() == Path("/x/rollwright")
    monkeypatch.setenv("ROLLWRIGHT_CACHE_DIR", "/y")
    assert cache_dir() == Path("/y")
    assert needs_of(Path(__file__)).dependencies == ()


async def test_queueing_is_told_apart_from_the_deadline(tmp_path, cache, script):
    """Museum: scoring bursts time out while queueing and score zero."""
    slots = CpuSlots(1)
    async with SubprocessRuntime(SubprocessConfig(directory=str(tmp_path)), slots=slots) as box:
        await provision(script)
        script.write_text(PLAIN.replace("import os, sys", "import os, sys; open(os.environ['HOME'] + '/fifo').read()"))
        await sh(box, 'mkfifo "$HOME/fifo"')
        first = asyncio.create_task(box.run_script(script, timeout_s=60))
        async with asyncio.timeout(30):
            while repr(slots) != "<CpuSlots 1 of 1 taken, 0 waiting>":
                await asyncio.sleep(0.001)
        second = asyncio.create_task(box.run_script(script, timeout_s=0.3))
        async with asyncio.timeout(30):
            while repr(slots) != "<CpuSlots 1 of 1 taken, 1 waiting>":
                await asyncio.sleep(0.001)
        await sh(box, 'sleep 0.5; : > "$HOME/fifo"')
        finished, timed_out = await first, await second
    assert (finished.exit_code, finished.queue_s) == (3, 0.0)
    assert timed_out.ending is Ending.TIMED_OUT
    assert timed_out.queue_s > 0.3, "it waited longer than its deadline, and then had all of its deadline"
    assert timed_out.wall_s >= 0.3


@pytest.mark.parametrize("warm", [False, True])
async def test_a_program_that_waits_for_others_holds_no_slot(tmp_path, cache, script, warm):
    """An agent waits minutes for its model, and nobody else's script may wait for it."""
    slots = CpuSlots(1)
    async with SubprocessRuntime(SubprocessConfig(directory=str(tmp_path)), slots=slots) as box, slots.take():
        async with asyncio.timeout(60):
            result = await box.run_script(script, warm=warm, takes_slot=False)
    assert (result.exit_code, result.queue_s) == (3, 0.0)
    assert repr(slots) == "<CpuSlots 0 of 1 taken, 0 waiting>"
