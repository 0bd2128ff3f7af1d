"""Zygotes: shared, watched, replaced; what cannot be warm is cold, with its answer and its reason."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from rollwright.runtimes import CpuSlots, Ending, SubprocessConfig, SubprocessRuntime
from rollwright.runtimes.warm import Care, keeper, stats
from rollwright.wire import RuntimeFault

from .conftest import runs


def _only_zygote():
    (zygote,) = keeper()._zygotes.values()
    return zygote


async def test_one_load_serves_all_boxes(tmp_path, script, counted):
    path = script("import os, sys\nprint(os.getppid(), os.getcwd())")
    started = stats.started
    boxes = [SubprocessRuntime(SubprocessConfig(directory=str(tmp_path))) for _ in range(4)]
    try:
        for box in boxes:
            await box.start()
        told = await asyncio.gather(*(box.run_script(path, warm=True) for box in boxes for _ in range(4)))
        answers = [result.text.split() for result in told]
        assert {parent for parent, _ in answers} == {str(_only_zygote().pid)}
        assert {place for _, place in answers} == {box._running().workspace for box in boxes}
        assert (counted.forked, stats.started - started) == (16, 1)
    finally:
        for box in boxes:
            await box.stop()
        await keeper().close()


async def test_a_dead_zygote_is_replaced(box, script, counted):
    path = script("import os\nprint('here')")
    assert (await box.run_script(path, warm=True)).text == "here\n"
    first = _only_zygote()
    replaced = stats.replaced
    os.kill(first.pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        while not first.broken:
            await asyncio.sleep(0.001)
    assert (await box.run_script(path, warm=True)).text == "here\n"
    assert _only_zygote().pid != first.pid
    assert (counted.forked, stats.replaced - replaced) == (2, 1)


async def test_a_stopped_zygote_is_replaced_and_what_waits_for_it_is_answered(box, script, counted):
    path = script("import os\nprint('here')")
    assert (await box.run_script(path, warm=True)).text == "here\n"
    first = _only_zygote()
    os.kill(first.pid, signal.SIGSTOP)
    async with asyncio.timeout(60):
        assert (await box.run_script(path, timeout_s=600, warm=True)).text == "here\n"
    assert first.broken == "zygote was stopped"
    assert (await box.run_script(path, warm=True)).text == "here\n"
    assert _only_zygote().pid != first.pid


async def test_a_zygote_that_dies_under_a_call_does_not_run_it_twice(box, script, counted):
    path = script(
        "import os, time\nopen('began', 'a').write(f'{os.getpid()}\\n')\ntime.sleep(1000)",
    )
    call = asyncio.create_task(box.run_script(path, timeout_s=60, warm=True))
    began = Path(box._running().workspace, "began")
    async with asyncio.timeout(30):
        while not (began.exists() and began.read_text()):
            await asyncio.sleep(0.001)
    os.kill(_only_zygote().pid, signal.SIGKILL)
    with pytest.raises(RuntimeFault, match="cut off in the middle: zygote died"):
        await call
    assert counted.cold == {}
    (pid,) = began.read_text().split()
    assert not runs(int(pid))


async def test_a_worn_out_zygote_is_replaced(box, script, counted):
    keeper().care = Care(max_calls=3)
    path = script("print('x')")
    replaced = stats.replaced
    for _ in range(7):
        assert (await box.run_script(path, warm=True)).text == "x\n"
    assert (counted.forked, stats.replaced - replaced) == (7, 2)


async def test_a_zygote_that_grew_is_replaced(box, script):
    path = script("print('x')")
    await box.run_script(path, warm=True)
    first = _only_zygote()
    first.calls = 63
    assert not keeper()._spent(first)
    first.fresh_mb = -1000.0
    assert keeper()._spent(first)


async def test_few_scripts_are_kept(box, script):
    keeper().care = Care(max_zygotes=2)
    paths = [script(f"print({number})", f"s{number}.py") for number in range(4)]
    for number, path in enumerate(paths):
        assert (await box.run_script(path, warm=True)).text == f"{number}\n"
    assert repr(keeper()) == "<Keeper 2 loaded, 0 refused>"


@pytest.mark.parametrize("warm", [True, "shared"])
async def test_an_edited_script_answers_anew(box, script, warm):
    """Also within one tick of the clock, and with the same size."""
    for word in ("one", "two", "six"):
        path = script(f"def main(argv):\n    return {word!r}\n\nif __name__ == '__main__':\n    print(main([]))")
        assert (await box.run_script(path, warm=warm)).text == f"{word}\n"


async def test_an_edited_neighbour_is_loaded_anew(box, script, tmp_path, counted):
    path = script("import neighbour\nprint(neighbour.WORD)")
    for word in ("one", "three"):
        (tmp_path / "neighbour.py").write_text(f"WORD = {word!r}")
        assert (await box.run_script(path, warm=True)).text == f"{word}\n"
    assert counted.forked == 2


REFUSED = {
    "threads": (
        "import keeps_thread\nprint('x')",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
    ),
    "environment": ("import keeps_thread\nprint('x')", "import os\nHOME = os.environ.get('HOME')"),
    "warmup": ("print('x')\ndef warmup():\n    raise ValueError", ""),
    "shadows": ("import json\nprint('x')", ""),
}


@pytest.mark.parametrize("why", REFUSED)
async def test_what_cannot_be_warm_is_cold(box, script, tmp_path, counted, why):
    body, neighbour = REFUSED[why]
    (tmp_path / ("json.py" if why == "shadows" else "keeps_thread.py")).write_text(neighbour)
    path = script(body)
    for _ in range(2):
        result = await box.run_script(path, warm=True, timeout_s=30)
        assert (result.text, result.exit_code) == ("x\n", 0)
    assert {word.partition(":")[0]: count for word, count in counted.cold.items()} == {why: 2}


async def test_switches_of_the_interpreter_are_heard(box, script, counted):
    path = script("import sys\nprint(sys.flags.optimize, __debug__)")
    for value in ("1", "1", ""):
        env = {"PYTHONOPTIMIZE": value} if value else {}
        result = await box.run_script(path, env=env, warm=True)
        assert result.text == ("1 False\n" if value else "0 True\n")
    assert (counted.forked, counted.cold) == (1, {"environment": 2})


async def test_loading_is_not_paid_from_the_deadline(box, script):
    path = script("import slowly\nprint('done')")
    Path(path.parent, "slowly.py").write_text("import time\ntime.sleep(0.5)")
    result = await box.run_script(path, timeout_s=0.45, warm=True)
    assert (result.ending, result.text) == (Ending.EXITED, "done\n")


async def test_queueing_is_told_apart(tmp_path, script):
    slots = CpuSlots(1)
    path = script("import time\ntime.sleep(0.1)")
    async with SubprocessRuntime(SubprocessConfig(directory=str(tmp_path)), slots=slots) as box:
        told = await asyncio.gather(*(box.run_script(path, timeout_s=5, warm=True) for _ in range(4)))
        assert [result.ending for result in told] == [Ending.EXITED] * 4
        assert max(result.queue_s for result in told) > 0.25
        await keeper().close()


async def test_a_stopped_box_ends_its_calls(tmp_path, script):
    from rollwright.wire import RuntimeLost

    path = script("import os, time\nopen('began', 'w').close()\ntime.sleep(1000)")
    box = SubprocessRuntime(SubprocessConfig(directory=str(tmp_path)))
    await box.start()
    began = Path(box._running().workspace, "began")
    call = asyncio.create_task(box.run_script(path, timeout_s=1000, warm=True))
    async with asyncio.timeout(30):
        while not began.exists():
            await asyncio.sleep(0.001)
    await box.stop()
    with pytest.raises(RuntimeLost):
        await call
    await keeper().close()


def test_nothing_is_left_when_the_loop_is(on_loop, script, tmp_path, own_children, open_fds):
    path = script("print('x')")

    async def work():
        async with SubprocessRuntime(SubprocessConfig(directory=str(tmp_path))) as box:
            for warm in (True, "shared"):
                assert (await box.run_script(path, warm=warm)).text == "x\n"
            await keeper().close()

    on_loop(work())
    children, fds = own_children(), open_fds()
    on_loop(work())
    assert (own_children(), open_fds()) == (children, fds)


LOOKS_AROUND = """
import re, sys
if sys.argv[1] != "look":
    sys.exit()
others = re.compile(sys.argv[2][::-1].encode() + b"-[0-9]")
with open("/proc/self/mem", "rb", 0) as memory:
    found = 0
    for line in open("/proc/self/maps"):
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if line.split()[1].startswith("r") and "[v" not in line:
            memory.seek(first)
            found += len(others.findall(memory.read(last - first)))
print(found)
"""


async def test_nothing_of_a_call_is_left_for_the_next(box, script, counted):
    """Neither its words nor its variables, long or short, wherever one looks in one's memory."""
    path = script(LOOKS_AROUND)
    for size in (1, 40, 900, 3000):
        told = [f"secret-of-another-{number}-" * size for number in (1, 2)]
        for _ in range(3):
            await box.run_script(path, ["say", told[0]], env={"HELD": told[1]}, warm=True)
    # Told backwards, or it would find its own words.
    result = await box.run_script(path, ["look", "secret-of-another"[::-1]], warm=True)
    assert (result.text, result.stderr) == ("0\n", b"")
    assert (counted.forked, counted.cold) == (13, {})


UNSAYABLE = {
    "zero": (["a\0b"], {}),
    "long": (["x" * (128 << 10)], {}),
    "just short enough": (["x" * ((128 << 10) - 1)], {}),
    "long in bytes": (["é" * 70_000], {}),
    "many": (["x" * 1000] * 3000, {}),
    "no character": (["\ud800"], {}),
    "long variable": ([], {"BIG": "x" * 140_000}),
    "file name": (["\udc80 is a byte"], {}),
}


@pytest.mark.parametrize("name", UNSAYABLE)
async def test_words_that_no_program_is_started_with_are_told_alike(box, script, name):
    path, (args, env) = script("import sys\nprint(len(sys.argv), ascii(sys.argv[-1][:9]))"), UNSAYABLE[name]
    told = []
    for warm in (False, True):
        try:
            result = await box.run_script(path, args, env=env, warm=warm)
            told.append((result.exit_code, result.stdout, result.stderr))
        except RuntimeFault as fault:
            told.append(str(fault))
    assert told[0] == told[1]
