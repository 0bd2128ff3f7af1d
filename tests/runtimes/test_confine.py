"""Writes of a subprocess box stay inside, and nothing of the host's environment can be seen from there."""

import asyncio
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rollwright.runtimes import Ending, SubprocessConfig, SubprocessRuntime, runtime_config
from rollwright.runtimes.local import Confinement, landlock
from rollwright.runtimes.testing import sh
from rollwright.wire import RuntimeFault, UsageError

needs_landlock = pytest.mark.skipif(
    not landlock.available(), reason=f"landlock version {landlock.version()} here, {landlock.NEEDED} is needed"
)


@pytest.fixture
def outside(tmp_path):
    place = tmp_path / "outside"
    place.mkdir()
    (place / "kept").write_text("as it was")
    return place


@needs_landlock
@pytest.mark.parametrize(
    "write",
    [
        "echo x > OUT/new",
        "echo x >> OUT/kept",
        ": > OUT/kept",
        "rm OUT/kept",
        "mkdir OUT/new",
        "rmdir OUT",
        "ln -s x OUT/new",
        "ln OUT/kept own",
        "mkfifo OUT/new",
        "mv OUT/kept own",
        "touch own; mv own OUT/new",
        "ln -s OUT out; echo x > out/new",
        "rm -rf ..",
        "env -i setsid sh -c 'echo x > OUT/new'",
    ],
)
async def test_no_write_leaves_the_box(box, outside, write):
    await sh(box, f"({write.replace('OUT', str(outside))}) 2> /dev/null; true")
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert (outside / "kept").read_text() == "as it was"
    assert os.path.isdir(box._box.root)


@needs_landlock
async def test_inside_everything_can_be_written(box):
    script = """
        set -e
        mkdir -p a b; echo x > a/x; mv a/x b/y; ln b/y a/z; ln -s z a/l; mkfifo a/p; truncate -s 0 b/y; rm b/y; rmdir b
        echo x > "$HOME/f"; mv "$HOME/f" "$TMPDIR/g"; echo x > /dev/null; echo err > /dev/stderr; echo out > /dev/stdout
        exec 3<> a/p; echo through > a/p; head -n 1 <&3
    """
    result = await box.run(["sh", "-c", script])
    assert (result.exit_code, result.stdout, result.stderr) == (0, b"out\nthrough\n", b"err\n")
    await box.reset()
    assert await sh(box, "echo again > file && cat file") == "again\n", "a reset box is confined to where it now is"


@needs_landlock
async def test_the_owner_stays_free(box, tmp_path):
    await box.run(["true"])
    (tmp_path / "mine").write_text("x")
    assert await asyncio.to_thread((tmp_path / "mine").read_text) == "x"
    assert "NoNewPrivs:\t0" in Path("/proc/thread-self/status").read_text()


@needs_landlock
async def test_further_places_can_be_allowed(tmp_path, outside):
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    async with SubprocessRuntime(SubprocessConfig(directory=str(boxes), allow_writes=(str(outside),))) as box:
        await sh(box, f"echo x > {outside}/new; echo x > {tmp_path}/new 2> /dev/null")
        assert str(outside) in box.writable_paths
    async with SubprocessRuntime(SubprocessConfig(directory=str(boxes), confine_writes=False)) as box:
        await sh(box, f"echo x > {tmp_path}/free")
        assert box.writable_paths == ()
    assert (outside / "new").exists()
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "free").exists()


async def test_a_place_that_is_not_there_cannot_be_allowed(tmp_path):
    with pytest.raises(UsageError, match="absolute"):
        runtime_config("subprocess", {"allow_writes": ["tmp"]})
    box = SubprocessRuntime(SubprocessConfig(directory=str(tmp_path), allow_writes=("/no/such/place",)))
    with pytest.raises(RuntimeFault, match="does not exist"):
        await box.start()
    assert list(tmp_path.iterdir()) == []


async def test_a_kernel_without_landlock_runs_programs_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(landlock, "version", lambda: 0)
    async with SubprocessRuntime(SubprocessConfig(directory=str(tmp_path))) as box:
        assert box.writable_paths == ()
        assert (await box.run(["cat"], stdin=b"x")).stdout == b"x"


async def test_a_program_sees_the_line_that_opens_the_gate_nowhere(box):
    for stdin in (b"", b"\n", b"one\n\ntwo", bytes(range(256)) * 1000):
        assert (await box.run(["cat"], stdin=stdin)).stdout == stdin
    assert await sh(box, "set | grep rollwright_gate; readlink /proc/self/fd/0") == "/dev/null\n"


async def test_the_thread_that_starts_a_program_is_gone_before_its_first_instruction(box):
    count = "ls /proc/$PPID/task | wc -l"
    before = int(await sh(box, count))
    assert {int(await sh(box, count)) for _ in range(20)} == {before}


def test_an_error_on_the_confined_thread_reaches_the_caller():
    confinement = Confinement()
    with pytest.raises(ZeroDivisionError):
        confinement.call(lambda: 1 // 0)
    assert confinement.call(lambda: 7) == 7
    confinement.close()
    confinement.close()


_LOOK = """
    cat /proc/[0-9]*/environ /proc/[0-9]*/task/*/environ /proc/[0-9]*/cmdline /proc/self/status 2> /dev/null
    env; set; cat /proc/self/mountinfo "$HOME"/* 2> /dev/null; true
"""
_SPY = """
    import glob, os
    looks = 0
    print("begun", flush=True)
    while not os.path.exists("enough"):
        looks += 1
        for path in glob.glob(f"/proc/{os.getppid()}/task/*/environ") + glob.glob("/proc/[0-9]*/environ"):
            try:
                with open(path, "rb") as file:
                    if b"SECRET_KEY=" in file.read():
                        print("seen in", path)
            except OSError:
                pass
    print(looks, "looks")
"""
_OWNER = """
    import asyncio, os, sys
    from rollwright.runtimes import SubprocessConfig, SubprocessRuntime
    from rollwright.runtimes.local import landlock

    boxes, look, spy, version = sys.argv[1:]
    if version == "0":
        landlock.version = lambda: 0

    async def main():
        async with SubprocessRuntime(SubprocessConfig(directory=boxes)) as box:
            once = await box.run(["sh", "-c", look], output_limit=1 << 24)
            assert once.ok and b"HOME=" in once.stdout, once
            print("look:", os.environ["SECRET_KEY"].encode() in once.stdout)
            async with await box.open_process([sys.executable, "-c", spy]) as spying:
                assert await spying.read() == b"begun\\n"
                for _ in range(60):
                    await box.run(["true"])
                await box.write("enough", b"")
                print("spy:", (await spying.wait(60)).text)

    asyncio.run(main())
"""


@pytest.mark.parametrize("version", [landlock.version(), 0], ids=["this kernel", "no landlock"])
def test_no_secret_of_the_owner_is_seen_by_any_way(tmp_path, version):
    """The owner is a process of its own here: /proc shows the environment that a process was started with. The spy
    looks again and again while programs are started, when threads and children with the owner's memory come and go."""
    if version < landlock.NEEDED and os.geteuid() != 0:
        pytest.skip("without landlock, programs of a user read what /proc shows of that user's processes")
    argv = [sys.executable, "-c", textwrap.dedent(_OWNER), str(tmp_path), _LOOK, textwrap.dedent(_SPY), str(version)]
    env = {**os.environ, "SECRET_KEY": f"sk-{os.urandom(8).hex()}-end"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "look: False" in done.stdout
    assert "seen in" not in done.stdout
    assert re.search(r"spy: [1-9]\d* looks", done.stdout)


@needs_landlock
async def test_a_program_cannot_trace_its_owner(box):
    attach = "import ctypes, os; print(ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0))"
    result = await box.run([sys.executable, "-c", attach])
    assert (result.ending, result.stdout) == (Ending.EXITED, b"-1\n")
