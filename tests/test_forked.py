"""A fork ends, speaks and fails as an interpreter of its own does."""

import os
import signal
import subprocess
import sys

import pytest

from forked import python


@pytest.mark.parametrize(
    "text",
    [
        "print('out'); import sys; print('err', file=sys.stderr)",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('a sentence')",
        "import atexit; atexit.register(print, 'last'); print('first')",
        "import threading; threading.Thread(target=print, args=['later']).start()",
        "import os; os.kill(os.getpid(), 9)",
        "import os, sys; print(os.getcwd(), os.environ['WORD'], 'HOME' in os.environ, sys.argv, sys.path[0], __name__)",
        "import sys; print(sys.stdin.read() == '', sys.stdout.isatty())",
        "import warnings; warnings.warn('x', DeprecationWarning)",
    ],
)
@pytest.mark.parametrize("flags", [(), ("-W", "error")], ids=["plain", "strict"])
def test_it_is_what_an_interpreter_would_be(text, flags, tmp_path):
    given = {"cwd": tmp_path, "env": {"WORD": "w", "PATH": os.environ["PATH"]}}
    argv = [sys.executable, *flags, "-c", text]
    real = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, **given)
    fork = python(*flags, "-c", text, **given)
    assert (fork.returncode, fork.stdout) == (real.returncode, real.stdout)
    assert fork.stderr.splitlines()[-1:] == real.stderr.splitlines()[-1:]


def test_a_module_is_run_with_its_words():
    assert python("-m", "rollwright", "--version").stdout.startswith("rollwright ")
    assert python("-m", "rollwright", "evl").returncode == 2


def test_one_leaves_nothing_to_the_next():
    python("-c", "import os, json; os.environ['LEFT'] = json.LEFT = 'x'; os.chdir('/')")
    told = python("-c", "import os, json; print('LEFT' in os.environ, hasattr(json, 'LEFT'), os.getcwd())").stdout
    assert told == f"False False {os.getcwd()}\n"


def test_it_can_be_signalled_and_has_a_deadline():
    wait = "import time; print('here', flush=True); time.sleep(1000)"
    assert python("-c", wait, begun=lambda pid: os.kill(pid, signal.SIGTERM)).returncode == -signal.SIGTERM
    with pytest.raises(subprocess.TimeoutExpired):
        python("-c", wait, timeout=0.2)
    assert python("-c", "print('next')").stdout == "next\n"
