# ruff: noqa: E501 - a liar reads best on one line.
"""Law 1: warm and cold agree byte for byte, whatever the script does. Law 2: what is killed is gone, and silent."""

import asyncio
from pathlib import Path

import pytest

from rollwright.runtimes import Ending
from rollwright.runtimes.testing import sh

from .conftest import runs, tree

LIARS = {
    "prints": "print('one'); print('two', end='')",
    "exit 3": "import sys; print('out'); sys.exit(3)",
    "exit word": "import sys; print('out'); sys.exit('a last word')",
    "exit none": "import sys; sys.exit()",
    "exit large": "import sys; sys.exit(1000)",
    "exit negative": "import sys; sys.exit(-1)",
    "os._exit": "import os; print('never flushed'); os._exit(7)",
    "segfault": "import ctypes; print('x', flush=True); ctypes.string_at(0)",
    "abort": "import os; os.abort()",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "killed for good": "import os, signal; print('once', flush=True); open('log', 'a').write('ran\\n'); os.kill(os.getpid(), signal.SIGKILL)",
    "interrupted": "raise KeyboardInterrupt",
    "raises": "def inner(n):\n    return 1 / n\n\n\ndef main():\n    inner(0)\n\nprint('before')\nmain()",
    "raises from": "try:\n    {}['k']\nexcept KeyError as e:\n    raise ValueError('é') from e",
    "group": "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
    "syntax": "def broken(:\n    pass",
    "syntax inside": "exec('a b')",
    "import fails": "import no_such_module_here",
    "memory hog": "x = bytearray(2 << 30)",
    "hook": "import sys\nsys.excepthook = lambda *a: print('hooked', a[0].__name__)\nraise ValueError",
    "50 MB": "import sys; sys.stdout.write('y' * (50 << 20))",
    "loud both": "import sys\nfor i in range(3000):\n    print('o' * 99)\n    print('e' * 99, file=sys.stderr)",
    "binary": "import sys; sys.stdout.buffer.write(bytes(range(256)) * 99)",
    "invalid utf-8": "import os; os.write(1, b'\\xff\\xfe'); os.write(2, b'\\xc3(')",
    "surrogate": "print('\\ud800')",
    "unflushed": "import sys; sys.stdout.write('no newline'); sys.stderr.write('nor here')",
    "open file": "f = open('left', 'w'); f.write('not closed by hand')",
    "stdin": "import sys; data = sys.stdin.buffer.read(); print(len(data), data[:5])",
    "lines": "for line in open(0):\n    print(repr(line))",
    "input": "print(repr(input('prompt> ')))",
    "carriage returns": "import sys; print(repr(sys.stdin.read()), sys.stdin.name, sys.stdin.newlines, sys.stdin.mode)",
    "access": "import fcntl; print([fcntl.fcntl(n, fcntl.F_GETFL) & 3 for n in range(3)])",
    "environb": "import os, posix; print(os.environb[b'GIVEN'], posix.environ[b'GIVEN'], os.environb == posix.environ == os.environ._data)",
    "no stdin": "import sys, os; print(repr(sys.stdin.read()), sys.stdin.seekable(), sys.stdout.seekable())",
    "env": "import os\nfor k, v in sorted(os.environ.items()):\n    print(k, v if k != 'ROLLWRIGHT_BOX' else '')",
    "env below": "import subprocess; subprocess.run('env | grep -v ROLLWRIGHT_BOX | sort', shell=True)",
    "cwd": "import os; print(os.getcwd(), os.environ['PWD']); os.mkdir('made'); open('made/f', 'w').write('x')",
    "argv": "import sys; print(sys.argv, sys.path, sys.orig_argv[1:], sys.executable, sys.flags)",
    "main": "import sys, __main__\nprint(sorted(vars()), __name__, __file__, __spec__, __doc__, __main__.__file__)",
    "main module": "'''doc'''\nimport sys\nprint(sys.modules['__main__'].__doc__, __package__, __cached__, __loader__.path)",
    "footer": "def main():\n    return 'm'\n\nif __name__ == '__main__':\n    print(main())",
    "top level": "import sys\nprint('loaded', len(sys.argv), sys.argv[1])",
    "dataclass": "from __future__ import annotations\nimport dataclasses, pickle\n@dataclasses.dataclass\nclass A:\n"
    "    x: int = 1\nprint(A(), A.__module__, pickle.loads(pickle.dumps(A(2))))",
    "annotations": "x: int = 1\nprint(__annotations__)",
    "atexit": "import atexit, sys\natexit.register(print, 'bye')\nclass B:\n    def __call__(self): return 1 / 0\n    "
    "def __repr__(self): return 'B'\natexit.register(B())\nprint('hi')",
    "atexit exit": "import atexit, os\natexit.register(lambda: os.write(1, b'late'))\nraise SystemExit(4)",
    "finalizer": "class A:\n    def __del__(self):\n        print('freed')\na = A()\n_b = A()",
    "signals": "import signal\nprint([(s, str(signal.getsignal(s))) for s in sorted(signal.valid_signals())])",
    "mask": "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))",
    "alarm": "import signal, time\nsignal.signal(signal.SIGALRM, lambda *a: print('rang'))\n"
    "signal.setitimer(signal.ITIMER_REAL, 0.01)\nsignal.pause()",
    "alarm kills": "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\nsignal.pause()",
    "threads": "import threading\nt = threading.Thread(target=lambda: print('thread'))\nt.start(); print(threading.active_count() > 0)",
    "main thread": "import threading; print(threading.main_thread().name, threading.current_thread().name)",
    "daemon thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
    "thread raises": "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='T'); t.start(); t.join()",
    "limits": "import resource\nprint([resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith('RLIMIT')])",
    "descriptors": "import os\nprint(sorted(int(f) for f in os.listdir('/proc/self/fd')), os.open('.', os.O_RDONLY))",
    "collector": "import gc; print(gc.isenabled(), gc.get_threshold(), gc.get_debug())",
    "umask": "import os; open('f', 'w').close(); m = os.umask(0); print(oct(m))",
    "session": "import os; print(os.getpgrp() == os.getpid() == os.getsid(0))",
    "privileges": "print([l for l in open('/proc/self/status') if l.startswith(('NoNewPrivs', 'Uid', 'Gid', 'CapEff', 'CapPrm'))])",
    "escape": "open('/var/tmp/rollwright-escape', 'w').write('x')",
    "protocol": "import os, struct\nfor k in b'SEFYN':\n    os.write(1, struct.pack('!cQi', bytes([k]), 1, 0)); os.write(2, b'{}')",
    "protocol anywhere": "import os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, b'E' + bytes(12))\n"
    "    except OSError:\n        pass\nprint('mine')",
    "outlived": "import subprocess; subprocess.Popen(['sleep', '1000']); print('parent is done')",
    "close stdout": "import sys, os\nprint('x'); sys.stdout.flush(); os.close(1)\nprint('y')",
    "logging": "import logging\nlogging.basicConfig(level='INFO', format='%(message)s')\nlogging.info('told')",
    "warns": "import warnings\nwarnings.warn('careful')",
    "asyncio": "import asyncio\nasync def main():\n    await asyncio.sleep(0)\n    print('ran')\nasyncio.run(main())",
    "processes": "import multiprocessing as m\ndef f(x):\n    return x + 1\nif __name__ == '__main__':\n"
    "    with m.Pool(1) as p:\n        print(p.map(f, [1, 2]))",
    "fork": "import os\npid = os.fork()\nif not pid:\n    print('child')\n    raise SystemExit(5)\n"
    "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
    "fork bomb": "import os\nfor i in range(4):\n    os.fork()\nos.write(1, b'.')\ntry:\n    while os.wait():\n        pass\nexcept ChildProcessError:\n    pass",
    "links": "import os\nos.symlink('/', 'out'); os.chmod('.', 0o711); open('x', 'w').write('1'); os.chmod('x', 0o600)",
    "exec": "import os; os.execvp('sh', ['sh', '-c', 'echo $0 replaced; exit 9', 'name'])",
    "recursion": "import sys\ndef f():\n    f()\ntry:\n    f()\nexcept RecursionError:\n    print(sys.getrecursionlimit())",
    "locale": "import locale, sys, time; print(locale.getlocale(), sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors)",
}
UNWARM = {"syntax"}
STDIN = {"carriage returns": b"a\r\nb\rc\n", "stdin": b"s" * 300_000, "lines": b"a\nb\r\nc", "input": b"typed\nrest"}


@pytest.mark.parametrize("name", LIARS)
async def test_warm_and_cold_agree(box, script, counted, name):
    path = script(LIARS[name])
    seen = []
    for warm in (False, True):
        result = await box.run_script(
            path, ["a b", "$c"], env={"GIVEN": "g\nh"}, stdin=STDIN.get(name, b""), timeout_s=60, warm=warm
        )
        told = (result.ending, result.exit_code, result.stdout, result.stdout_dropped, result.stderr_dropped)
        seen.append((told, result.stderr, tree(box._running().root)))
        await box.reset()
    assert seen[0] == seen[1]
    assert counted.forked == (name not in UNWARM), counted.cold


async def test_random_numbers_differ(box, script, counted):
    path = script("import random, uuid\nprint(random.random(), uuid.uuid4())\ndef warmup():\n    random.random()")
    told = {(await box.run_script(path, warm=True)).text for _ in range(4)}
    assert (len(told), counted.forked) == (4, 4)


async def test_a_seeded_script_repeats_itself(box, script):
    path = script("import random\nrandom.seed(7)\nprint(random.random())\ndef warmup():\n    random.random()")
    told = {(await box.run_script(path, warm=warm)).text for warm in (False, True, True)}
    assert len(told) == 1


WARMED = """
import atexit, logging, signal, sys
logging.basicConfig(format="%(message)s")
CACHE = []
atexit.register(lambda: print("end", CACHE))
signal.signal(signal.SIGUSR1, lambda *a: None)
print("loaded")


def main(argv):
    CACHE.append(argv)
    logging.warning("worked %d", len(CACHE))
    return str(len(CACHE))


def warmup():
    main(["warm"])


if __name__ == "__main__":
    print(main(sys.argv[1:]), signal.getsignal(signal.SIGUSR2))
"""


async def test_what_warming_up_did_is_not_seen(box, script, counted):
    path = script(WARMED)
    seen = [await box.run_script(path, ["x"], warm=warm) for warm in (False, True, True)]
    assert {(r.exit_code, r.stdout, r.stderr) for r in seen} == {(0, seen[0].stdout, b"worked 1\n")}
    assert b"end [['x']]" in seen[0].stdout
    assert counted.forked == 2


@pytest.mark.parametrize("warm", [False, True])
async def test_a_timeout_kills_the_tree(box, script, warm):
    """A child, a child in a session of its own, and a fork that wears no environment of its own: all are gone."""
    path = script(
        "import os, subprocess, sys, time\n"
        "print(subprocess.Popen(['sleep', '1000']).pid)\n"
        "print(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid)\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    os.setsid(); pid = os.fork()\n"
        "    if pid: os._exit(0)\n"
        "    os.chdir('/'); os.close(1); os.close(2); time.sleep(1000)\n"
        "os.wait()\n"
        "print(os.popen('pgrep -s 0').read() and os.getpid(), flush=True)\n"
        "time.sleep(1000)\n"
    )
    before = _with_cmdline(str(path))
    await box.run_script(script("print('ready')", "other.py"), warm=warm)
    result = await box.run_script(path, timeout_s=2, warm=warm)
    assert (result.ending, result.exit_code) == (Ending.TIMED_OUT, 124)
    pids = [int(word) for word in result.text.split()]
    assert len(pids) == 3
    assert not any(runs(pid) for pid in pids)
    left = _with_cmdline(str(path)) - before
    assert left == _unseated(left)


@pytest.mark.parametrize("warm", [False, True])
async def test_a_cancelled_call_is_killed_first(box, script, warm):
    path = script(
        "import os, time\nopen('pid', 'w').write(str(os.getpid()))\nos.rename('pid', 'ready')\ntime.sleep(1000)"
    )
    call = asyncio.create_task(box.run_script(path, timeout_s=1000, warm=warm))
    ready = Path(box._running().workspace, "ready")
    async with asyncio.timeout(30):
        while not ready.exists():
            await asyncio.sleep(0.001)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not runs(int(ready.read_text()))


async def test_a_late_answer_reaches_nobody(box, script, counted):
    """Museum: a warm worker answers the previous caller after a timeout."""
    path = script("import sys, time\nif sys.argv[1] == 'slow':\n    time.sleep(1000)\nprint(sys.argv[1])")
    await box.run_script(path, ["first"], warm=True)
    slow = [box.run_script(path, ["slow"], timeout_s=0.3, warm=True) for _ in range(4)]
    fast = [box.run_script(path, [str(n)], timeout_s=60, warm=True) for n in range(16)]
    results = await asyncio.gather(*slow, *fast)
    assert [r.ending for r in results[:4]] == [Ending.TIMED_OUT] * 4
    assert [r.stdout for r in results[:4]] == [b""] * 4
    assert [r.text for r in results[4:]] == [f"{n}\n" for n in range(16)]
    assert (counted.forked, counted.cold) == (21, {})


async def test_a_daemon_lives_until_the_reset(box, script):
    path = script(
        "import os, time\nif not os.fork():\n    os.setsid()\n    if os.fork(): os._exit(0)\n"
        "    os.chdir('/')\n    for fd in range(3): os.close(fd)\n    time.sleep(1000)\n"
        "print(os.getpid(), flush=True)\nos.wait()"
    )
    await box.run_script(path, warm=True)
    state = await box.inspect()
    assert len(state.processes) == 1
    await box.reset()
    assert (await box.inspect()).processes == ()


async def test_no_secret_of_the_host_is_seen(box, script, monkeypatch):
    monkeypatch.setenv("HOST_API_KEY", "sk-secret-of-the-host")
    path = script(
        "import os\nprint(os.environ.get('HOST_API_KEY'), open('/proc/self/environ').read(), "
        "open('/proc/self/cmdline').read(), open(f'/proc/{os.getppid()}/environ').read())"
    )
    result = await box.run_script(path, env={"OTHER": "given-to-one"}, warm=True)
    assert b"sk-secret" not in result.stdout + result.stderr
    second = await box.run_script(script("import os; print(os.environ.get('OTHER'))", "b.py"), warm=True)
    assert second.text == "None\n"
    assert "None" in await sh(box, "echo None")


def _with_cmdline(word):
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if word.encode() in (entry / "cmdline").read_bytes() and runs(int(entry.name)):
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


def _unseated(pids):
    """Zygotes, and children of theirs that wait for a call: they are of no box."""
    return {pid for pid in pids if b"\0ROLLWRIGHT_BOX=-" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()}
