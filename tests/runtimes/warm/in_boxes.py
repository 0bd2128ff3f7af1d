# ruff: noqa: E501 - a liar reads best on one line.
"""What warm scripts promise in boxes that have their zygotes inside. Each kind's tests hold its boxes to it."""

import asyncio

import pytest

from rollwright.runtimes import Ending
from rollwright.runtimes.state import differences
from rollwright.runtimes.warm import stats
from rollwright.wire import RuntimeFault, RuntimeLost

PATIENCE_S = 60.0
LIARS = {
    "exit 3": "import sys; print('out'); sys.exit(3)",
    "exit like a signal": "import sys; sys.exit(137)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "segfault": "import ctypes; print('x', flush=True); ctypes.string_at(0)",
    "raises": "def inner(n):\n    return 1 / n\n\nprint('before')\ninner(0)",
    "syntax": "def broken(:\n    pass",
    "loud": "import sys\nfor i in range(3000):\n    print('o' * 99)\n    print('e' * 99, file=sys.stderr)",
    "stdin": "import sys; data = sys.stdin.buffer.read(); print(len(data), data[:5], data[-5:])",
    "no stdin": "import sys; print(repr(sys.stdin.read()), sys.stdin.seekable())",
    "env": "import os\nfor k, v in sorted(os.environ.items()):\n    print(k, v if k != 'ROLLWRIGHT_BOX' else '')",
    "cwd": "import os; print(os.getcwd(), os.environ.get('PWD')); os.mkdir('made'); open('made/f', 'w').write('x')",
    "argv": "import sys; print(sys.argv, sys.path, sys.orig_argv, sys.executable, sys.flags)",
    "places": "import os, tempfile\nprint(sorted(os.listdir()), sorted(os.listdir(tempfile.gettempdir())), sorted(os.listdir(os.environ['HOME'])))",
    "descriptors": "import os\nprint(sorted(int(f) for f in os.listdir('/proc/self/fd')))",
}
STDIN = {"stdin": bytes(range(256)) * 100}
UNWARM = {"syntax"}

COUNTS = "import os, sys\nprint(os.getppid(), sys.argv[1:])\n"
LATE = (
    "import os, subprocess, sys, time\n"
    "if sys.argv[1:]:\n    print(sys.argv[1]); sys.exit()\n"
    "words = ['sh', '-c', 'while sleep 0.05; do echo x >> beats; done']\n"
    "subprocess.Popen(words, env={'PATH': os.environ['PATH']}, start_new_session=True, stdout=subprocess.DEVNULL)\n"
    "print('began', flush=True)\ntime.sleep(1000)\n"
)


async def check_agreement(box, write):
    """Warm is cold, byte for byte; what a liar left in the workspace is the same, too."""
    for name, body in LIARS.items():
        path, seen, before = write(body), [], stats.forked
        for warm in (False, True):
            result = await box.run_script(
                path, ["a b", "$c"], env={"GIVEN": "g\nh"}, stdin=STDIN.get(name, b""), timeout_s=PATIENCE_S, warm=warm
            )
            told = (result.ending, result.exit_code, result.stdout, result.stdout_dropped, result.stderr)
            await box.run(["sh", "-c", "rm -rf made"])
            seen.append(told)
        assert seen[0] == seen[1], (name, seen)
        assert stats.forked - before == (name not in UNWARM), (name, stats)


async def check_one_load(box, write):
    """Every call is a child of one process, which is gone after a reset; what was killed is replaced."""
    path = write(COUNTS)
    fresh, started = await box.inspect(), stats.started
    told = [await box.run_script(path, [str(n)], warm=warm) for n, warm in enumerate((True, True, "shared"))]
    pids = {result.text.split()[0] for result in told}
    assert [result.text.split(None, 1)[1] for result in told] == [f"['{n}']\n" for n in range(3)]
    assert (len(pids), stats.started - started) == (1, 1)
    assert (await box.run(["kill", "-9", pids.pop()])).ok
    await _until_replaced(box, path, started + 2)
    await box.reset()
    assert differences(fresh, await box.inspect()) == []
    assert (await box.run_script(path, ["again"], warm=True)).text.endswith("['again']\n")
    assert stats.started - started == 3


async def _until_replaced(box, path, started):
    """A call that meets the dying zygote is answered cold or told as cut off; it is never run twice."""
    for _ in range(20):
        try:
            assert (await box.run_script(path, ["x"], warm=True)).text.endswith("['x']\n")
        except RuntimeFault as error:
            if "in the middle" not in str(error):
                raise
        if stats.started == started:
            return
    pytest.fail("the zygote was not replaced")


async def check_deadline(box, write):
    """What is late is ended with all it started, also a child of another session and environment."""
    path = write(LATE)
    late, other = await asyncio.gather(
        box.run_script(path, timeout_s=2.0, warm=True), box.run_script(path, ["fast"], timeout_s=PATIENCE_S, warm=True)
    )
    assert (late.ending, late.exit_code, late.text, other.text) == (Ending.TIMED_OUT, 124, "began\n", "fast\n")
    beats = "a=$(wc -c < beats); sleep 0.3; [ $a = $(wc -c < beats) ]"
    assert (await box.run(["sh", "-c", beats])).ok, "a child of a late script lives on"


async def check_reset_under_a_call(box, write):
    """Whoever waits gets RuntimeLost, and nothing of the call is seen by the next user."""
    path = write("import time\nopen('here', 'w').close()\ntime.sleep(1000)\n")
    fresh = await box.inspect()
    call = asyncio.create_task(box.run_script(path, timeout_s=1000, warm=True))
    assert (await box.run(["sh", "-c", "until [ -e here ]; do sleep 0.02; done"], timeout_s=PATIENCE_S)).ok
    await box.reset()
    with pytest.raises(RuntimeLost):
        await call
    assert differences(fresh, await box.inspect()) == []


async def check_never_twice(box, write):
    """A script under which the zygote dies has run once, and its caller is told that the answer was lost."""
    body = "import os, signal, time\nopen('ran', 'a').write('x')\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(1000)\n"
    cold = sum(stats.cold.values())
    with pytest.raises(RuntimeFault, match="in the middle") as told:
        await box.run_script(write(body), timeout_s=PATIENCE_S, warm=True)
    assert not isinstance(told.value, RuntimeLost)
    assert (await box.read("ran"), sum(stats.cold.values())) == (b"x", cold)
    assert (await box.run_script(write("print('on')"), timeout_s=PATIENCE_S, warm=True)).text == "on\n"
