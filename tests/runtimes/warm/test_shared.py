# ruff: noqa: E501 - a script reads best on one line.
"""Shared workers: the same answers for functions that keep nothing, and cold ones for everything else."""

import asyncio

import pytest

from rollwright.runtimes import Ending
from rollwright.runtimes.warm import keeper

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
