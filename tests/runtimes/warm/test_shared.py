# ruff: noqa: E501 - a script reads best on one line.
"""Shared workers: the same answers for functions that keep nothing, and cold ones for everything else."""

import asyncio
from pathlib import Path

import pytest

from rollwright.runtimes import CpuSlots, Ending, SubprocessConfig, SubprocessRuntime
from rollwright.runtimes.warm import Care, keeper

FOOTER = "\n\nif __name__ == '__main__':\n    print(main(sys.argv[1:]))\n"
PURE = {
    "answers": "import sys\ndef main(argv):\n    return ' '.join(argv)",
    "prints": "import sys\ndef main(argv):\n    print('first'); print('oops', file=sys.stderr)\n    return 'é\\n'",
    "box": "import os, sys\ndef main(argv):\n    open('made', 'w').write('x')\n    return os.getcwd() + os.environ['GIVEN'] + os.environ['HOME']",
    "stdin": "import sys\ndef main(argv):\n    return sys.stdin.read()",
    "argv": "import sys\ndef main(argv):\n    return repr(sys.argv)",
}
IMPURE = {
    "raises": "import sys\ndef main(argv):\n    raise ValueError('wrong')",
    "exits": "import sys\ndef main(argv):\n    sys.exit(3)",
    "no text": "import sys\ndef main(argv):\n    return 7",
    "no main": "import sys\nprint('no main')\ndef main_(argv): ...\nmain = None",
    "dies": "import os, sys\ndef main(argv):\n    os._exit(9)",
    "segfaults": "import ctypes, sys\ndef main(argv):\n    ctypes.string_at(0)",
    "long": "import sys\ndef main(argv):\n    return 'x' * 100_000",
    "buffer": "import sys\ndef main(argv):\n    sys.stdout.buffer.write(b'\\xff')\n    sys.stdout.fileno()\n    return ''",
}


@pytest.mark.parametrize("name", [*PURE, *IMPURE])
async def test_shared_and_cold_agree(box, script, counted, name):
    path = script((PURE | IMPURE)[name] + FOOTER)
    seen = []
    for warm in (False, "shared", "shared"):
        result = await box.run_script(
            path, ["a", "$b"], env={"GIVEN": "g"}, stdin=b"in\xc3\xa9", timeout_s=60, warm=warm
        )
        seen.append((result.ending, result.exit_code, result.stdout, result.stderr))
    assert seen[0] == seen[1] == seen[2]
    assert counted.shared == (2 if name in PURE else 0), counted.cold


async def test_long_questions_arrive(box, script, counted):
    path = script("import sys\ndef main(argv):\n    return str([len(a) for a in argv])" + FOOTER)
    result = await box.run_script(path, ["x" * 100_000, "y" * 30_000], warm="shared")
    assert (result.text, counted.shared) == ("[100000, 30000]\n", 1)


async def test_a_timeout_replaces_the_worker_and_its_answer_reaches_nobody(box, script, counted):
    path = script("import sys, time\ndef main(argv):\n    time.sleep(float(argv[0]))\n    return argv[1]" + FOOTER)
    calls = [
        box.run_script(path, [wait, name], timeout_s=1.0, warm="shared")
        for wait, name in [("0", "a"), ("1000", "late"), ("0", "b"), ("0", "c"), ("1000", "late"), ("0", "d")]
    ]
    told = await asyncio.gather(*calls)
    assert [r.text for r in told] == ["a\n", "", "b\n", "c\n", "", "d\n"]
    assert [r.ending for r in told].count(Ending.TIMED_OUT) == 2
    assert [r.exit_code for r in told] == [0, 124, 0, 0, 124, 0]


async def test_a_cancelled_call_ends_its_worker(box, script):
    path = script(
        "import os, sys, time\ndef main(argv):\n    if argv: time.sleep(1000)\n    return str(os.getpid())" + FOOTER
    )
    first = await box.run_script(path, warm="shared")
    call = asyncio.create_task(box.run_script(path, ["wait"], timeout_s=1000, warm="shared"))
    async with asyncio.timeout(30):
        while any(keeper()._workers.values()):
            await asyncio.sleep(0.001)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    second = await box.run_script(path, warm="shared")
    assert first.text != second.text


async def test_many_at_once(box, script, counted):
    path = script("import sys\ndef main(argv):\n    return argv[0]" + FOOTER)
    told = await asyncio.gather(*(box.run_script(path, [str(n)], warm="shared") for n in range(200)))
    assert [r.text for r in told] == [f"{n}\n" for n in range(200)]
    assert counted.shared == 200


WAITS = "import os, sys, time\ndef main(argv):\n    while argv[1:] and not os.path.exists(argv[1]): time.sleep(0.001)\n    return argv[0]"


@pytest.fixture
async def narrow(tmp_path):
    """A box with as many slots as asked for; none of them stays taken."""
    boxes = []

    async def start(count):
        slots = CpuSlots(count)
        boxes.append((SubprocessRuntime(SubprocessConfig(directory=str(tmp_path)), slots=slots), slots))
        await boxes[-1][0].start()
        return boxes[-1][0]

    yield start
    await keeper().close()
    for box, slots in boxes:
        await box.stop()
        assert repr(slots) == f"<CpuSlots 0 of {slots.count} taken, 0 waiting>"


async def test_a_call_at_the_door_of_a_long_one_is_taken_elsewhere(narrow, script, counted):
    box, path = await narrow(2), script(WAITS + FOOTER)
    workspace = Path(box._running().workspace)
    long_ones = [asyncio.create_task(box.run_script(path, [n, n], timeout_s=1000, warm="shared")) for n in "ab"]
    await _given(2)
    behind = [asyncio.create_task(box.run_script(path, [n], timeout_s=1000, warm="shared")) for n in "cd"]
    (workspace / "a").touch()
    async with asyncio.timeout(30):
        assert [(await call).text for call in (long_ones[0], *behind)] == ["a\n", "c\n", "d\n"]
    assert not long_ones[1].done()
    (workspace / "b").touch()
    assert (await long_ones[1]).text == "b\n"
    assert counted.shared == 4


async def test_time_at_the_door_is_not_counted(narrow, script):
    body = "import sys, time\ndef main(argv):\n    time.sleep(0.3)\n    return ''"
    box, path = await narrow(1), script(body + FOOTER)
    told = await asyncio.gather(*(box.run_script(path, timeout_s=1.0, warm="shared") for _ in range(5)))
    assert [result.ending for result in told] == [Ending.EXITED] * 5
    assert max(result.queue_s for result in told) > 1.0


async def test_a_call_cancelled_at_the_door_and_one_that_never_got_there(narrow, script, counted):
    box, path = await narrow(1), script(WAITS + FOOTER)
    calls = [asyncio.create_task(box.run_script(path, [n, "go"], timeout_s=1000, warm="shared")) for n in "abcd"]
    await _given(2)
    for call in calls[1:3]:
        call.cancel()
    await asyncio.wait(calls[1:3])
    Path(box._running().workspace, "go").touch()
    assert [(await calls[n]).text for n in (0, 3)] == ["a\n", "d\n"]
    assert (counted.shared, counted.cold) == (2, {})


async def test_a_worker_that_dies_leaves_the_call_at_its_door_to_another(narrow, script, counted):
    body = "import os, sys\ndef main(argv):\n    if argv[0] == 'die': os._exit(9)\n    return argv[0]"
    box, path = await narrow(1), script(body + FOOTER)
    told = await asyncio.gather(*(box.run_script(path, [n], warm="shared") for n in ("a", "die", "b", "die", "c")))
    assert [(result.text, result.exit_code) for result in told] == [
        ("a\n", 0), ("", 9), ("b\n", 0), ("", 9), ("c\n", 0),
    ]  # fmt: skip
    assert (counted.shared, counted.cold) == (3, {"worker died": 2})


async def test_those_who_fork_get_slots_from_those_who_share(narrow, script, counted):
    box, path = await narrow(1), script("import sys\ndef main(argv):\n    return argv[0]" + FOOTER)
    ended = []

    async def call(name, warm):
        assert (await box.run_script(path, [name], warm=warm)).text == f"{name}\n"
        ended.append(warm)

    await call("first", "shared")
    await asyncio.gather(*(call(str(n), True if n == 5 else "shared") for n in range(100)))
    assert ended.index(True) < 50
    assert (counted.shared, counted.forked) == (100, 1)


async def test_a_worker_is_not_asked_for_ever(narrow, script, counted):
    keeper().care = Care(max_calls=10)
    box, path = await narrow(1), script("import os, sys\ndef main(argv):\n    return str(os.getpid())" + FOOTER)
    told = await asyncio.gather(*(box.run_script(path, warm="shared") for _ in range(35)))
    assert len({result.text for result in told}) == 4
    assert counted.shared == 35


async def test_calls_that_wait_when_all_is_closed_are_answered_cold(narrow, script, counted):
    box, path = await narrow(1), script(WAITS + FOOTER)
    calls = [asyncio.create_task(box.run_script(path, [n, "go"], timeout_s=1000, warm="shared")) for n in "abcd"]
    await _given(2)
    await keeper().close()
    Path(box._running().workspace, "go").touch()
    assert [(await call).text for call in calls] == ["a\n", "b\n", "c\n", "d\n"]
    assert counted.cold == {"closed": 4}


async def _given(count):
    """Wait until workers have been sent so many calls, that at their doors included."""
    async with asyncio.timeout(30):
        while sum(len(lane._given) for crew in keeper()._crews.values() for lane in crew._lanes) < count:
            await asyncio.sleep(0.001)
