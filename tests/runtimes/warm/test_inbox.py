# ruff: noqa: E501 - a liar reads best on one line.
"""Warm scripts through the contract alone: the carrier inside of a box, here one of this machine."""

import asyncio
import hashlib
from contextlib import asynccontextmanager

import pytest

from rollwright.runtimes import Ending
from rollwright.runtimes.provision import provision
from rollwright.runtimes.warm import Care
from rollwright.runtimes.warm.inbox import BoxScript, Inbox, programs
from rollwright.runtimes.warm.zygotes import Unwarm
from rollwright.wire import RuntimeFault

from .conftest import runs
from .test_liars import LIARS, STDIN

# Not told here: where the interpreter came from, and how the box limits each program of its own.
CHOSEN = [
    "prints", "exit 3", "exit word", "os._exit", "segfault", "killed", "raises", "group", "import fails", "loud both", "binary",
    "invalid utf-8", "unflushed", "open file", "stdin", "lines", "no stdin", "cwd", "main", "atexit", "alarm", "threads", "protocol",
    "protocol anywhere", "outlived", "fork", "exec", "limits",
]  # fmt: skip


@asynccontextmanager
async def made_inbox(box, care=None):
    async def bring():
        for name, content in programs().items():
            await box.write(f"{box._running().tmp}/{name}", content)
        return box._running().tmp

    async def opener(argv, env):
        return await box.open_process(argv, env=env)

    inbox = Inbox(opener, bring, lambda: None, care)
    try:
        yield inbox
    finally:
        await inbox.close()


async def lying(path):
    return BoxScript(str(await provision(path)), str(path), hashlib.sha256(path.read_bytes()).hexdigest())


@asynccontextmanager
async def loaded(box, path):
    async with made_inbox(box) as inbox:
        yield await inbox.zygote(await lying(path))


@pytest.mark.parametrize("name", CHOSEN)
async def test_inbox_and_cold_agree(box, script, name):
    path = script(LIARS[name])
    stdin = STDIN.get(name, b"")
    cold = await box.run_script(path, ["a b", "$c"], env={"GIVEN": "g"}, stdin=stdin, timeout_s=60)
    await box.reset()
    async with loaded(box, path) as zygote:
        warm = await zygote.run(["a b", "$c"], {"GIVEN": "g"}, stdin, 60, 60 << 20)
    assert (warm.ending, warm.exit_code, warm.stdout, warm.stderr) == (
        cold.ending,
        cold.exit_code,
        cold.stdout,
        cold.stderr,
    )


async def test_output_is_capped_and_counted(box, script):
    async with loaded(box, script("import os\nos.write(1, b'x' * 50_000); os.write(2, b'y' * 300)")) as zygote:
        result = await zygote.run([], {}, b"", 60, 100)
    assert (result.stdout, result.stdout_dropped, result.stderr_dropped) == (b"x" * 100, 49_900, 200)


async def test_a_timeout_kills_the_tree_and_the_others_go_on(box, script):
    path = script(
        "import os, subprocess, sys, time\nif len(sys.argv) > 1:\n    print(sys.argv[1]); sys.exit()\n"
        "print(os.getpid(), subprocess.Popen(['sleep', '1000'], start_new_session=True).pid, flush=True)\ntime.sleep(1000)"
    )
    async with loaded(box, path) as zygote:
        slow = asyncio.create_task(zygote.run([], {}, b"", 2.0, 1000))
        fast = await asyncio.gather(*(zygote.run([str(n)], {}, b"", 60, 1000) for n in range(8)))
        late = await slow
    assert [result.text for result in fast] == [f"{n}\n" for n in range(8)]
    assert (late.ending, late.exit_code) == (Ending.TIMED_OUT, 124)
    pids = [int(word) for word in late.text.split()]
    assert len(pids) == 2
    assert not any(runs(pid) for pid in pids)


async def test_a_carrier_that_dies_is_told(box, script):
    async with loaded(box, script("import time\ntime.sleep(1000)")) as zygote:
        call = asyncio.create_task(zygote.run([], {}, b"", 600, 1000))
        while not zygote._waiting:
            await asyncio.sleep(0)
        await zygote._process.kill()
        with pytest.raises(RuntimeFault, match="in the middle: zygote died"):
            await call
        with pytest.raises(Unwarm):
            await zygote.run([], {}, b"", 600, 1000)


async def test_what_cannot_be_loaded_is_refused(box, script):
    with pytest.raises(Unwarm, match="syntax"):
        async with loaded(box, script("def broken(:")):
            pass


async def test_an_inbox_loads_once_and_again_when_it_died(box, script):
    lies = await lying(script("import os\nprint(os.getppid())"))
    async with made_inbox(box) as inbox:
        told = []
        for _ in range(3):
            zygote = await inbox.zygote(lies)
            told.append((await zygote.run([], {}, b"", 60, 1000)).text)
        assert len(set(told)) == 1
        await zygote._process.kill()
        async with asyncio.timeout(30):
            while not zygote.broken:
                await asyncio.sleep(0.001)
        again = await inbox.zygote(lies)
        assert (await again.run([], {}, b"", 60, 1000)).text not in told


async def test_a_worn_zygote_ends_after_its_last_call(box, script):
    """Those who asked it are answered by it; whoever asks later is answered by its successor."""
    lies = await lying(script("import os, sys\nsys.stdin.read()\nprint(os.getppid())"))
    async with made_inbox(box, Care(max_calls=2)) as inbox:
        first = await inbox.zygote(lies)
        told = [(await first.run([], {}, b"", 60, 1000)).text]
        slow = asyncio.create_task(first.run([], {}, b"x" * (4 << 20), 60, 1000))
        while first.idle:
            await asyncio.sleep(0)
        second = await inbox.zygote(lies)
        assert (first.worn(inbox.care), first.broken, second is first) == (True, "", False)
        told += [(await slow).text, (await second.run([], {}, b"", 60, 1000)).text]
        assert await inbox.zygote(lies) is second
        assert (first.broken, inbox._open) == ("closed", {second})
    assert told[0] == told[1] != told[2]


async def test_a_zygote_that_grew_is_worn(box, script):
    lies = await lying(script("print('x')"))
    async with made_inbox(box) as inbox:
        zygote = await inbox.zygote(lies)
        assert 1.0 < zygote.fresh_mb == zygote.memory_mb
        zygote.memory_mb = 0.0
        for _ in range(64):
            assert (await zygote.run([], {}, b"", 60, 1000)).text == "x\n"
        assert zygote.memory_mb > 1.0, "its carrier weighs it now and then"
        assert not zygote.worn(inbox.care)
        zygote._on_frame({"kind": "ended", "id": 0, "memory_mb": zygote.fresh_mb + 257}, b"")
        assert zygote.worn(inbox.care)


async def test_a_timeout_finds_children_that_wear_no_mark(box, script):
    path = script(
        "import subprocess, time\n"
        "print(subprocess.Popen(['sleep', '1000'], env={}, start_new_session=True).pid, flush=True)\ntime.sleep(1000)"
    )
    async with loaded(box, path) as zygote:
        late = await zygote.run([], {}, b"", 2.0, 1000)
    assert late.ending is Ending.TIMED_OUT
    assert not runs(int(late.text))


async def test_a_caller_who_is_cancelled_while_it_is_fed_spoils_nothing(box, script):
    async with loaded(box, script("import sys\nprint(len(sys.stdin.buffer.read()))")) as zygote:
        call = asyncio.create_task(zygote.run([], {}, b"x" * (8 << 20), 60, 1000))
        while not zygote._writing.locked():
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await zygote.run([], {}, b"four", 60, 1000)).text == "4\n"


async def test_nonsense_from_the_box_ends_the_zygote(box, script):
    async with loaded(box, script("print('never')")) as zygote:
        zygote._on_frame = lambda *_: {}["kind"]
        with pytest.raises(RuntimeFault, match="nonsense"):
            await zygote.run([], {}, b"", 60, 1000)
        with pytest.raises(Unwarm, match="nonsense"):
            await zygote.run([], {}, b"", 60, 1000)


async def test_a_warmup_that_yields_is_done_before_the_first_call(box, script, tmp_path):
    (tmp_path / "memory.py").write_text("STEPS = []")
    steps = "\n".join(f"    memory.STEPS.append({number})\n    yield" for number in range(3))
    path = script(f"import memory\ndef warmup():\n{steps}\nif __name__ == '__main__': print(*memory.STEPS)")
    async with loaded(box, path) as zygote:
        assert (await zygote.run([], {}, b"", 60, 1000)).text == "0 1 2\n"


BACKGROUND = "import os, subprocess, sys\nsubprocess.Popen(['sh', '-c', sys.argv[1]])\nos.write(1, b'first ')"


@pytest.mark.parametrize(("does", "heard"), [("sleep 0.03; echo late", b"first late\n"), ("sleep 1000", b"first ")])
async def test_what_is_written_right_after_the_end_is_heard(box, script, does, heard):
    """As a cold run hears it; who only holds the pipe is not waited for."""
    path = script(BACKGROUND)
    cold = await box.run_script(path, [does], timeout_s=60)
    async with loaded(box, path) as zygote:
        warm = await zygote.run([does], {}, b"", 60, 1000)
    assert (warm.stdout, warm.exit_code) == (cold.stdout, cold.exit_code) == (heard, 0)
