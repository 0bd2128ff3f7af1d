"""The scripted engine in its own process: it comes up, it says why it does not, it never outlives its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
import uvloop

from engines.scripted.scripted_client import client_of, until
from rollwright.engines.scripted import ScriptedConfig, scripted_process
from rollwright.wire import EngineUnavailable, ModelCall, UsageError, assistant, user

ECHO = ScriptedConfig(policy="echo")


def about(pid, what):
    return Path(f"/proc/{pid}/{what}").read_text()


def exists(pid):
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return about(pid, "stat").rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(pid):
    await until(lambda: not exists(pid))
    return True


async def test_a_child_serves_and_ends_with_its_block():
    async with scripted_process(ECHO) as engine, client_of(engine) as client:
        reply = await client.ask(ModelCall("m", (user("hello"),)))
        assert reply.message == assistant("hello")
        assert [entry.call.messages for entry in await client.log()] == [(user("hello"),)]
        assert (await client.get("/scripted/stats"))["served"] == 1
        assert engine.alive
        assert "uvloop" in about(engine.pid, "maps")
    assert not engine.alive
    assert await gone(engine.pid)


SOLVER = """
from rollwright.wire import assistant
def factory(options):
    return lambda messages: assistant(options["answer"]) if messages[-1].text == "ask" else None
"""


async def test_a_solver_of_the_working_directory_is_found_and_shadows_nothing(tmp_path, monkeypatch):
    (tmp_path / "my_solver.py").write_text(SOLVER)
    (tmp_path / "random.py").write_text("raise RuntimeError('not the library')")
    monkeypatch.chdir(tmp_path)
    config = ScriptedConfig(solver="my_solver:factory", solver_options={"answer": "42"})
    async with scripted_process(config) as engine, client_of(engine) as client:
        assert (await client.ask(ModelCall("m", (user("ask"),)))).message == assistant("42")
        assert (await client.ask(ModelCall("m", (user("other"),)))).message == assistant("I do not know.")


async def test_settings_do_not_travel_on_the_command_line():
    config = ScriptedConfig(policy="echo", models=("a-secret-name",))
    async with scripted_process(config) as engine:
        assert "a-secret-name" not in about(engine.pid, "cmdline")


def test_a_parent_on_uvloop_is_a_parent_too():
    async def own():
        async with scripted_process(ECHO) as engine, client_of(engine) as client:
            assert (await client.ask(ModelCall("m", (user("hello"),)))).message == assistant("hello")
        return engine.pid

    assert not exists(uvloop.run(own()))


async def test_an_error_in_the_block_ends_the_child_too():
    with pytest.raises(KeyError):
        async with scripted_process(ECHO) as engine:
            raise KeyError("mine")
    assert await gone(engine.pid)


async def test_cancelling_the_owner_ends_the_child():
    started = asyncio.get_running_loop().create_future()

    async def own():
        async with scripted_process(ECHO) as engine:
            started.set_result(engine.pid)
            await asyncio.get_running_loop().create_future()

    owner = asyncio.create_task(own())
    pid = await started
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner
    assert await gone(pid)


async def test_wrong_settings_are_told_as_such():
    with pytest.raises(UsageError, match="did you mean 'oracle'"):
        async with scripted_process(ScriptedConfig(policy="orcale")):
            pass


async def test_a_child_that_dies_while_starting_is_told_with_its_last_words(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text("import os, sys\nprint('these were my last words', file=sys.stderr, flush=True)\nos._exit(7)\n")
    with pytest.raises(EngineUnavailable, match=r"exit code 7 .* these were my last words"):
        async with scripted_process(ScriptedConfig(policy=f"{file}:policy")):
            pass


async def test_a_child_that_does_not_start_in_time_is_killed(tmp_path, monkeypatch):
    file = tmp_path / "slow.py"
    file.write_text("import time\ntime.sleep(1000)\n")
    started, create = [], asyncio.create_subprocess_exec

    async def noted(*argv, **fields):
        started.append(await create(*argv, **fields))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    with pytest.raises(EngineUnavailable, match=r"did not start within 0.2 s; it said nothing"):
        async with scripted_process(ScriptedConfig(policy=f"{file}:policy"), start_timeout_s=0.2):
            pass
    assert started[0].returncode == -signal.SIGKILL


PARENT = """
import asyncio
from rollwright.engines.scripted import ScriptedConfig, scripted_process
async def main():
    async with scripted_process(ScriptedConfig(policy="echo")) as engine:
        print(engine.pid, flush=True)
        await asyncio.sleep(1000)
asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_a_parent_that_is_killed_leaves_no_child(how):
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        child = int(await asyncio.wait_for(parent.stdout.readline(), 20))
        assert exists(child)
        os.kill(parent.pid, how)
        await asyncio.wait_for(parent.wait(), 20)
        assert await gone(child)
    finally:
        if parent.returncode is None:
            parent.kill()
            await parent.wait()


async def test_a_child_ends_when_its_stdin_does():
    """The other way to learn of the parent's death, where the kernel does not tell."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rollwright.engines.scripted"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    settings = b'{"config": {"policy": "echo"}, "parent_pid": %d}\n' % os.getpid()
    child.stdin.write(settings)
    assert b'"port"' in await asyncio.wait_for(child.stdout.readline(), 20)
    child.stdin.close()
    assert await asyncio.wait_for(child.wait(), 20) == 0
