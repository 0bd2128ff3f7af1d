"""Beginnings and ends of sandboxes: cancelled, killed, swept, and a hundred of them without a trace."""

import asyncio
import os
import random
import select
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from rollwright.runtimes.journal import Journal
from rollwright.runtimes.sandbox import SandboxConfig, cgroups
from rollwright.runtimes.sandbox.keeper import Keeper, keeper
from rollwright.runtimes.sandbox.layout import order
from rollwright.runtimes.sandbox.runtime import SandboxRuntime
from rollwright.runtimes.sandbox.sweep import sweep
from rollwright.runtimes.sweep import sweep_all
from rollwright.runtimes.testing import raises, sh
from rollwright.wire import RuntimeFault, RuntimeLost

PATIENCE_S = 30


def await_ends(handles):
    """Until every process has ended."""
    poller = select.poll()
    for handle in handles:
        poller.register(handle, select.POLLIN)
    left = set(handles)
    while left:
        ended = poller.poll(PATIENCE_S * 1000)
        assert ended, f"{len(left)} processes outlive their owner"
        for handle, _ in ended:
            poller.unregister(handle)
            left.discard(handle)


def pids_inside(pid):
    """Processes of this host, as this host numbers them, that share the process namespace of `pid`."""
    space = os.readlink(f"/proc/{pid}/ns/pid")
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "ns" / "pid") == space:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


_OWNER = """
import asyncio, sys
from pathlib import Path
from rollwright.runtimes.journal import Journal
from rollwright.runtimes.sandbox.runtime import SandboxConfig, SandboxRuntime

async def main():
    box = SandboxRuntime(SandboxConfig(), journal=Journal(Path(sys.argv[1])))
    await box.start()
    await box.run(["sh", "-c", "setsid sleep 1000 & env -i setsid sleep 1000 &"])
    print(box._box.pid, *box._box.groups.paths, flush=True)
    await box.run(["sleep", "1000"], timeout_s=1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("also_the_warden", [False, True])
def test_a_killed_owner_leaves_nothing(make, tmp_path, also_the_warden):
    place = tmp_path / "orphans"
    words = [sys.executable, "-c", _OWNER, str(place)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as owner:
        pid, *groups = owner.stdout.readline().split()
        inside = pids_inside(int(pid))
        assert len(inside) >= 3
        handles = [os.pidfd_open(number) for number in inside]
        if also_the_warden:
            children = Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split()
            for task in Path(f"/proc/{owner.pid}/task").iterdir():
                children += (task / "children").read_text().split()
            for child in set(children):
                os.kill(int(child), signal.SIGKILL)
        owner.kill()
    await_ends(handles)
    for handle in handles:
        os.close(handle)
    swept = asyncio.run(sweep_all(Journal(place)))
    assert (len(swept.freed), dict(swept.failed)) == (1, {})
    assert list(Journal(place).entries()) == []
    assert [group for group in groups if os.path.exists(group)] == []


def test_a_sweep_ends_who_is_left_in_a_group_and_is_idempotent():
    groups = cgroups.make("rollwright-sweep-test", cgroups.recipe(cgroups.Bounds(pids=10)))
    if not groups.paths:
        pytest.skip("no control group can be had here")
    left = subprocess.Popen(["sleep", "1000"])
    for door in groups.doors:
        Path(door).write_text(str(left.pid))
    clues = {"groups": ":".join(groups.paths)}
    reaper = threading.Thread(target=left.wait, args=[PATIENCE_S])
    reaper.start()
    asyncio.run(sweep(clues))
    reaper.join()
    assert left.returncode == -signal.SIGKILL
    asyncio.run(sweep(clues))
    assert not any(os.path.exists(path) for path in groups.paths)


async def test_a_dead_warden_loses_its_boxes_and_is_replaced(make):
    async with make() as box:
        keeper._process.kill()
        await asyncio.to_thread(keeper._process.wait)
        with pytest.raises(RuntimeLost):
            await box.run(["sleep", "1000"], timeout_s=PATIENCE_S)
        assert not await box.alive()
    async with make() as box:
        assert await sh(box, "echo on") == "on\n"


def test_a_keeper_that_is_closed_ends_its_warden():
    other = Keeper()
    other.channel([], order(SandboxConfig(), cgroups.Recipe())).close()
    process = other._process
    other.close()
    assert process.returncode == 0


@pytest.mark.parametrize("seed", range(12))
async def test_a_cancelled_start_or_reset_is_freed_or_lost(make, seed, open_fds):
    async with make():
        before = open_fds()
    chance = random.Random(seed)
    box = make()
    starting = asyncio.create_task(box.start())
    if seed % 2:
        await starting
        await sh(box, "sleep 1000 & touch left")
    work = asyncio.create_task(box.reset()) if seed % 2 else starting
    await asyncio.wait({work}, timeout=chance.random() * 0.02)
    work.cancel()
    try:
        await work
    except asyncio.CancelledError:
        assert not await box.alive(), "half a reset is none"
    await box.stop()
    assert not await box.alive()
    assert open_fds() <= before


async def test_cancelled_commands_leave_no_process(make):
    async with make() as box:
        for delay in (0, 0.001, 0.003, 0.01):
            running = [asyncio.create_task(box.run(["sleep", "1000"])) for _ in range(5)]
            await asyncio.wait(running, timeout=delay)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            assert (await box.inspect()).processes == ()


def test_many_boxes_and_commands_leave_no_descriptor_and_no_zombie(make, on_loop, open_fds, own_children):
    async def use(box):
        async with box:
            await asyncio.gather(*(box.run(["cat"], stdin=b"x" * 100_000) for _ in range(5)))
            await box.reset()
            assert (await box.run(["sleep", "1000"], timeout_s=0.01)).exit_code == 124

    async def main():
        await use(make())
        fds, children = open_fds(), own_children()
        await asyncio.gather(*(use(make()) for _ in range(8)))
        assert (open_fds(), own_children()) == (fds, children)

    on_loop(main())


async def test_long_arguments_and_environments_arrive(make):
    async with make() as box:
        result = await box.run(
            ["sh", "-c", 'printf "%s" "$1$LONG" | wc -c', "sh", "a" * 100_000], env={"LONG": "b" * 100_000}
        )
    assert int(result.text) == 200_000


async def test_a_box_that_cannot_be_made_is_a_fault_with_a_reason_and_is_freed(make, tmp_path, open_fds):
    async with make():
        before = open_fds()
    template = tmp_path / "template"
    box = make(workspace_from=str(template))
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(RuntimeFault, match="template"):
            await box.start()
    assert not await box.alive()
    assert open_fds() <= before


async def test_what_cannot_be_run_says_so_in_its_own_name(make):
    async with make() as box:
        await sh(box, "echo text > text; mkdir -p $HOME/bin; cp /bin/true $HOME/bin/found")
        many = ":".join([f"/nowhere/{number}" for number in range(20)] + ["/home/box/bin"])
        for argv, env, code, words in (
            (["nothing"], {}, 127, b"nothing: No such file or directory\n"),
            (["./text"], {}, 126, b"./text: Permission denied\n"),
            (["text/below"], {}, 127, b"text/below: Not a directory\n"),
            (["found"], {}, 127, b"found: No such file or directory\n"),
            (["found"], {"PATH": "/nowhere:/home/box/bin"}, 0, b""),
            (["found"], {"PATH": many}, 0, b""),
        ):
            result = await box.run(argv, env=env)
            assert (result.exit_code, result.stderr) == (code, words), argv


async def test_remains_that_nobody_asked_for_hold_up_no_reset(make):
    async with make() as box:
        async with await box.open_process(["sh", "-c", "exit 3"]) as process:
            assert await process.read() == b""
            async with asyncio.timeout(PATIENCE_S):
                await box.reset()
        assert (await box.inspect()).processes == ()
        assert await sh(box, "echo on") == "on\n"


_WRITERS = """
for place in . "$HOME" /tmp /dev/shm; do
    for n in 1 2; do (while :; do echo x > "$place/$n.$$"; mkdir -p "$place/d/$n"; done) > /dev/null 2>&1 & done
done
"""


@pytest.mark.parametrize("direct", [True, False])
async def test_who_writes_until_he_is_killed_writes_into_the_old_places(make, monkeypatch, direct):
    monkeypatch.setattr("rollwright.runtimes.sandbox.layout.DIRECT", direct)
    async with make() as box:
        fresh = await box.inspect()
        for _ in range(5):
            await box.run(["sh", "-c", _WRITERS])
            await box.reset()
            assert await box._box.look(box._base_env) == fresh


async def test_a_look_is_told_again_only_while_nobody_touched_the_box(make):
    async with make() as box:
        fresh = await box.inspect()
        assert await box.inspect() is fresh
        touches = (
            lambda: box.write("file", b"x"),
            lambda: sh(box, "touch file"),
            lambda: box.forward(8000),
        )
        for touch in touches:
            await touch()
            assert await box.inspect() != fresh
            await box.reset()
            clean = await box.inspect()
            assert clean == fresh
            assert await box.inspect() is clean


async def test_a_missing_directory_is_a_fault(make):
    async with make() as box:
        with pytest.raises(RuntimeFault, match="No such file"):
            await box.run(["true"], cwd="nowhere")
        assert await sh(box, "echo on") == "on\n"


async def test_a_script_runs_inside(make, tmp_path, cache):
    script = tmp_path / "scripts" / "who.py"
    script.parent.mkdir()
    script.write_text(
        textwrap.dedent("""
            # /// script
            # dependencies = []
            # ///
            import os, sys
            open("made", "w").write("by the script")
            print(os.getcwd(), os.getuid(), sys.argv[1:], sys.stdin.read())
        """)
    )
    cache.mkdir()
    async with make() as box:
        await raises(RuntimeFault, box.run_script(script))
    async with make(visible=(str(script.parent),)) as box:
        result = await box.run_script(script, ["a", "b"], stdin=b"fed")
        assert result.text == "/workspace 1000 ['a', 'b'] fed\n", result
        assert await box.read("made") == b"by the script"


def test_the_status_line_tells_the_state():
    assert repr(SandboxRuntime(SandboxConfig())).endswith(" not started, 0 active, 0 commands>")


async def test_a_connection_to_a_box_that_is_gone_just_ends(make):
    """Nobody is told of an error that nobody could have avoided."""
    told = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    async with make() as box:
        url = await box.expose(8000)
        box._box.channel.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    await asyncio.sleep(0)
    assert told == []
