# ruff: noqa: E501 - a case reads best on one line.
"""Law 1 at the end of a script: what it tells, frees and leaves there is that of a cold run, byte for byte.

All cases are one script, so that one zygote and one interpreter serve them: each call runs the block of its case.
"""

import re
import textwrap

import pytest

from rollwright.runtimes.provision import provision

from .conftest import HEAD, tree

TEE = "class Tee:\n    def __init__(self, s): self.s = s\n    def __repr__(self): return 'Tee'\n    def write(self, t): return self.s.write(t)\n"
SPEAKS = "class A:\n    def __init__(self, n): self.n = n\n    def __del__(self): print('freed', self.n)\n"
LOG = "class Log:\n    def __init__(self, path): self.file = open(path, 'w'); self.hooks = [self.put]\n    def put(self, t): self.file.write(t)\n"

FLUSHED = {
    "tee": TEE
    + "    def flush(self): self.s.flush()\nsys.stdout = Tee(sys.stdout); sys.stderr = Tee(sys.stderr)\nprint('out'); print('err', file=sys.stderr)",
    "tee that buffers": "class Tee:\n    def __init__(self, s): self.s, self.b = s, []\n    def write(self, t): self.b.append(t)\n    def flush(self): self.s.write(''.join(self.b)); self.b = []; self.s.flush()\nsys.stdout = Tee(sys.stdout)\nprint('hello')",
    "tee without flush": TEE + "sys.stdout = Tee(sys.stdout)\nprint('hello')",
    "flush raises": TEE + "    def flush(self): raise RuntimeError('no')\nsys.stdout = Tee(sys.stdout)\nprint('hello')",
    "flush raises, hooked": TEE
    + "    def flush(self): raise RuntimeError('no')\nsys.unraisablehook = lambda told: os.write(2, repr((told.exc_type, told.object)).encode())\nsys.stdout = Tee(sys.stdout)\nprint('hello')",
    "odd closed": TEE
    + "    def flush(self): os.write(1, b'flushed')\n    closed = property(lambda self: 1 / 0)\nsys.stdout = Tee(sys.stdout)",
    "fd 1 closed": "print('x'); os.close(1)",
    "fd 2 closed": "print('x'); os.close(2)\n1 / 0",
    "both gone": "print('x'); del sys.stdout, sys.stderr",
    "none": "print('x'); sys.stdout = sys.stderr = None\n1 / 0",
    "stderr closed": "print('x'); sys.stderr.close(); sys.exit('bye')",
    "wrapped anew": "import io\nprint('lost'); sys.stdout = io.TextIOWrapper(sys.stdout.buffer, 'utf-8')\nprint('kept')",
    "os._exit at exit": "import atexit\natexit.register(os._exit, 9)\nprint('told')",
    "exit handlers by hand": "import atexit\natexit.register(print, 'bye')\natexit._run_exitfuncs()\nprint('still here')",
    "exit handlers cleared": "import atexit\natexit.register(print, 'bye')\natexit._clear()\nprint('told'); sys.exit(5)",
}
FREED = {
    "uses a module": "class Scratch:\n    def __init__(self, p): self.p = p; open(p, 'w').close()\n    def __del__(self): os.remove(self.p); print('removed', self.p)\nscratch = Scratch('scratch')",
    "uses globals": "LIST = ['a']\nclass A:\n    def __del__(self): print(LIST, N, report())\ndef report(): return len(LIST)\na = A(); N = 5",
    "order": SPEAKS + "x = [A(1), A(2)]; _y = A(3); d = {'k': A(4)}\ndef f(): pass\nf.a = A(5); A.a = A(6)",
    "no function": "import io\nx = open('x', 'w'); x.write('1'); _y = open('y', 'w'); _y.write('2')",
    "cycles": SPEAKS + "for n in range(3):\n    a = A(n); a.me = a\nb = A('last'); b.me = b",
    "held by its class": SPEAKS + "A.all = []\nA.all.append(A(1))",
    "held by a module": SPEAKS
    + "import __main__, types\nm = types.ModuleType('m'); m.a, m.main = A(1), __main__; sys.modules['m'] = m",
    "held by a hook": SPEAKS
    + "sys.unraisablehook = lambda told: print('told')\na = A(1); f = open('x', 'w'); f.write('data')",
    "weak": "import weakref\nclass A: pass\na = A(); weakref.finalize(a, print, 'finalized'); r = weakref.ref(a, lambda _: print('called'))",
    "raises": "class A:\n    def __del__(self): 1 / 0\na = A(); del a\nb = A()",
    "imports": "class A:\n    def __del__(self):\n        import colorsys\na = A()",
    "generator": "def g():\n    try: yield\n    finally: print('closed')\nit = g(); next(it)",
    "never awaited": "async def m(): pass\nk = m()",
    "unclosed": "import warnings\nwarnings.simplefilter('always')\nf = open('x', 'w'); f.write('data')",
    "unclosed is an error": "import warnings\nwarnings.simplefilter('error')\nf = open('x', 'w'); f.write('data')",
    "file in a cycle": LOG + "log = Log('x'); log.put('line')",
    "file in garbage": LOG + "def work(): Log('x').put('line')\nwork()",
    "file in a closure": "f = open('x', 'w')\nclass W: pass\nw = W(); w.f = f; w.put = lambda t: w.f.write(t)\nw.put('line')",
    "file in a library": "import json\njson.mine = open('x', 'w'); json.mine.write('line')",
    "collector off": SPEAKS + "import gc\ngc.disable()\na = A(1); a.me = a; del a\nb = A(2)",
    "frames of a failure": SPEAKS
    + "def f():\n    a = A('local'); raise ValueError\nimport atexit; atexit.register(print, 'bye')\nf()",
    "frames of an exit": SPEAKS
    + "def f():\n    a = A('local'); sys.exit(3)\nimport atexit; atexit.register(print, 'bye')\nf()",
    "another main": SPEAKS + "import types\nsys.modules['__main__'] = types.ModuleType('other'); a = A(1)",
    "no modules": "sys.modules.clear(); print('x')",
}
ENDED = {
    **{
        f"exit {code}": f"sys.exit({code})"
        for code in (
            "2**31",
            "2**32 + 3",
            "2**40 + 3",
            "-2**40 + 5",
            "2**64 + 7",
            "True",
            "1.5",
            "{'a': 1}",
            "''",
            "Exception('e')",
        )
    },
    "exit by format": "class X:\n    def __str__(self): return 'str'\n    def __format__(self, how): return 'format'\nsys.exit(X())",
    "exit by failing str": "class X:\n    def __str__(self): raise ValueError('no')\nsys.exit(X())",
    "interrupted": "raise KeyboardInterrupt",
    "kind of interrupt": "class K(KeyboardInterrupt): pass\nraise K",
    "hook": "sys.excepthook = lambda *told: print(told[0], sys.exc_info(), sys.last_type, told[2].tb_lineno > 0, '__file__' in globals())\n1 / 0",
    "hook raises": "def hook(*told): raise ValueError('in hook')\nsys.excepthook = hook\n1 / 0",
    "hook exits": "def hook(*told): sys.exit(9)\nsys.excepthook = hook\nraise KeyboardInterrupt",
    "no hook": "del sys.excepthook\n1 / 0",
    "hook is none": "sys.excepthook = None\n1 / 0",
    "last": "import atexit\natexit.register(lambda: print(sys.last_type, sys.last_value, sys.last_traceback.tb_next, sys.exc_info()))\n1 / 0",
    "name of the file": "import atexit\natexit.register(lambda: print('__file__' in globals(), '__cached__' in globals()))",
    "name of the file, failed": "import atexit\natexit.register(lambda: print('__file__' in globals()))\n1 / 0",
    "name of the file, exited": "import atexit\natexit.register(lambda: print('__file__' in globals()))\nsys.exit(1)",
    "profile left on": "def g(): pass\nsys.setprofile(lambda frame, event, arg: event == 'call' and os.write(1, frame.f_code.co_name.encode()))\ng()",
    "trace left on": "def g(): pass\nsys.settrace(lambda frame, event, arg: os.write(1, frame.f_code.co_name.encode()) and None)\ng()",
    "names in order": "print(list(globals()), __annotations__)",
    "depth": "def f(n): return n and f(n - 1)\nfor n in range(980, 1000):\n    try: f(n); print(n)\n    except RecursionError as e: print(e)",
    "too deep": "def f(n): return f(n + 1)\nf(0)",
    "context": "try: raise ValueError\nexcept ValueError as e: print(e.__context__, sys.exc_info()[1] is e)\nprint(sys.exc_info())\nraise KeyError('k')",
    "fork ends": "import atexit; atexit.register(print, 'bye')\npid = os.fork()\nif not pid: sys.exit(4)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
}
GROUPS = {"flushed": FLUSHED, "freed": FREED, "ended": ENDED}


@pytest.fixture
def both(box, tmp_path):
    """Runs one case of a script cold and warm, and gives both accounts; addresses differ."""

    async def run(path, case):
        told = []
        for warm in (False, True):
            result = await box.run_script(path, [case], timeout_s=60, warm=warm)
            streams = [re.sub(rb"0x[0-9a-f]+", b"0x", stream) for stream in (result.stdout, result.stderr)]
            told.append((result.ending, result.exit_code, *streams, tree(box._running().workspace)))
            await box.reset()
        return told

    return run


@pytest.mark.parametrize("group", GROUPS)
async def test_the_end_is_that_of_a_cold_run(both, script, counted, group):
    cases = GROUPS[group]
    blocks = [f"if case == {name!r}:\n{textwrap.indent(body, '    ')}\n" for name, body in cases.items()]
    path = script("import os, sys\ncase = sys.argv.pop()\n" + "".join(blocks))
    differ = {}
    for case in cases:
        cold, warm = await both(path, case)
        if cold != warm:
            differ[case] = {"cold": cold, "warm": warm}
    assert differ == {}
    assert (counted.forked, counted.cold) == (len(cases), {})


BESIDE_A_SITE = {
    "says": "print('out')",
    "fails": "print('out')\n1 / 0",
    "exits": "print('out')\nsys.exit(3)",
    "registers": "import atexit\natexit.register(print, 'bye')",
    "frees": SPEAKS + "a = A('named')",
    "keeps a file": "f = open('left', 'w'); f.write('x')",
}


async def test_a_site_that_registers_for_the_end_is_heard(both, script, counted, tmp_path, monkeypatch):
    """Its functions come last, and are not left out."""
    monkeypatch.setenv("ROLLWRIGHT_CACHE_DIR", str(tmp_path / "own"))
    blocks = [f"if case == {name!r}:\n{textwrap.indent(body, '    ')}\n" for name, body in BESIDE_A_SITE.items()]
    path = script("import os, sys\ncase = sys.argv.pop()\n" + "".join(blocks))
    python = await provision(path)
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    (packages / "registers.pth").write_text("import atexit; atexit.register(print, 'the site ends')\n")
    for case in BESIDE_A_SITE:
        cold, warm = await both(path, case)
        assert cold == warm
        assert b"the site ends" in warm[2]
    assert (counted.forked, counted.cold) == (len(BESIDE_A_SITE), {})


async def test_one_frame_lies_below_a_script(box, tmp_path):
    """Which is all that a script can see of how it is run."""
    path = tmp_path / "stack.py"
    path.write_text(HEAD + "import inspect\nprint(len(inspect.stack()))")
    told = [(await box.run_script(path, warm=warm)).text for warm in (False, True)]
    assert told == ["1\n", "2\n"]
