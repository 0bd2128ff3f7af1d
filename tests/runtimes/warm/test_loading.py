# ruff: noqa: E501 - a liar reads best on one line.
"""Law 1 for what happens while a script is loaded: as cold, or refused with a reason that tells, and never outside."""

import os

import pytest

from rollwright.harnesses.bash import SCRIPT as BASH_AGENT
from rollwright.runtimes.warm import keeper

from .conftest import tree

FORKED = ""
SHOWS = "import helper\nprint(helper.X)"
# A script, the module beside it, and why it is not warm.
LOADED = {
    "prints": (SHOWS, "print('loading')\nX = 1", "said"),
    "warns": (SHOWS, "import warnings\nwarnings.warn('old')\nX = 1", "said"),
    "writes to a descriptor": (SHOWS, "import os\nX = os.write(2, b'low')", "said"),
    "looks where it is": (SHOWS, "import os\nX = os.path.basename(os.path.dirname(os.getcwd()))", "cwd"),
    "swallows where it is": (SHOWS, "import os\ntry:\n    X = len(os.getcwd())\nexcept OSError:\n    X = 0", "cwd"),
    "looks for a file": (SHOWS, "import os\nX = os.path.exists('given')", "cwd"),
    "lists": (SHOWS, "import os\nX = os.listdir()", "cwd"),
    "reads a file": (SHOWS, "X = open('given').read()", "cwd"),
    "leaves a file": (SHOWS, "X = open('left', 'a').write('x')", "cwd"),
    "moves away": ("import helper, os\nprint(os.getcwd())", "import os\nos.chdir('/usr')", "did: os.chdir"),
    "starts a program": (SHOWS, "import subprocess\nX = subprocess.run('echo x; pwd >> left', shell=True).args", "did: subprocess.Popen"),
    "binds": (SHOWS, "import socket\nwith socket.socket() as s:\n    s.bind(('127.0.0.1', 0))\nX = 1", "did: socket.bind"),
    "asks for the host": (SHOWS, "import socket\nX = socket.gethostname()", "did: socket.gethostname"),
    "swallows all": (SHOWS, "try:\n    open('left', 'w').write('x')\nexcept BaseException:\n    pass\nX = 1", "cwd"),
    "looks at words": (SHOWS, "import sys\nX = '-v' in sys.argv", "argv"),
    "keeps words": ("import helper\nprint(helper.argv)", "from sys import argv", "argv"),
    "reads input": (SHOWS, "import sys\nX = sys.stdin.read()", "stdin"),
    "knows its program": (SHOWS, "import sys\nX = sys.modules['__main__'].__file__", FORKED),
    "keeps its program": (SHOWS, "import __main__\nX = __main__.__name__", "__main__"),
    "looks into its program": ("MODE = 'fast'\nimport helper\nprint(helper.X)", "import __main__\nX = getattr(__main__, 'MODE', 'slow')", "__main__"),
    "handles signals": ("import helper, signal\nprint(signal.getsignal(signal.SIGUSR1))", "import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)", "signals"),
    "seeds": ("import helper, random\nprint(random.random())", "import random\nrandom.seed(5)", "seed"),
    "fails in the middle": ("try:\n    import helper\nexcept RuntimeError:\n    import state\nprint(state.N)", "import state\nstate.N += 1\nraise RuntimeError", "import: RuntimeError"),
    "exits": ("import helper", "raise SystemExit(7)", "import: SystemExit"),
    "misses a module": ("try:\n    import missing\nexcept ImportError:\n    import helper as missing\nprint(missing.X)", "X = 1", FORKED),
    "keeps the directory": ("import multiprocessing.process, os\nprint(multiprocessing.process.ORIGINAL_DIR == os.getcwd())", "", FORKED),
    "reads bytes of variables": ("import helper, os\nprint(helper.X == os.environb[b'HOME'])", "import os\nX = os.environb[b'HOME']", "environment"),
    "set a variable first": ("import os\nos.environ['MODE'] = 'fast'\nimport helper\nprint(helper.X)", "import os\nX = os.environ.get('MODE', 'slow')", FORKED),
    "set a path first": ("import os, sys\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'vendored'))\nimport colorsys\nprint(getattr(colorsys, 'MINE', None))", "", FORKED),
    "configured first": ("import state\nstate.N = 'fast'\nimport helper\nprint(helper.X)", "import state\nX = state.N", FORKED),
    "warmed up aloud": ("import helper\ndef warmup():\n    helper.once()\nif __name__ == '__main__':\n    helper.once()", "SAID = []\ndef once():\n    if not SAID:\n        SAID.append(print('be careful'))", "said"),
    "warmed up in the world": ("def warmup():\n    open('left', 'w').close()\nprint('x')", "", "cwd"),
    "warmed up by itself": ("import logging, sys\nprint('top', sys.argv[1:])\ndef warmup():\n    logging.warning('mine')\nif __name__ == '__main__':\n    warmup()", "", FORKED),
}  # fmt: skip


@pytest.mark.parametrize("name", LOADED)
async def test_what_is_loaded_is_as_cold_or_refused(box, script, tmp_path, counted, name):
    body, helper, why = LOADED[name]
    (tmp_path / "helper.py").write_text(helper)
    (tmp_path / "state.py").write_text("N = 0")
    (tmp_path / "vendored").mkdir()
    (tmp_path / "vendored" / "colorsys.py").write_text("MINE = 1")
    path, outside, seen = script(body), os.listdir("/"), []
    for warm in (False, True):
        await box.write("given", b"g")
        result = await box.run_script(path, ["-v"], stdin=b"typed", warm=warm)
        told = (result.ending, result.exit_code, result.stdout, result.stderr)
        seen.append((told, tree(box._running().workspace)))
        await box.reset()
    assert seen[0] == seen[1]
    assert (counted.forked, counted.cold) == ((0, {why: 1}) if why else (1, {}))
    assert os.listdir("/") == outside


async def test_files_that_were_read_are_watched(box, script, tmp_path, counted):
    """Also one that was looked for in vain, and one that a warmup read."""
    (tmp_path / "rubric.py").write_text(
        "import functools, os\nHERE = os.path.dirname(__file__)\n"
        "@functools.cache\ndef get(name):\n    try:\n        with open(os.path.join(HERE, name)) as file:\n"
        "            return file.read()\n    except FileNotFoundError:\n        return 'nothing'\n"
        "AT_ONCE = get('one')"
    )
    path = script(
        "import rubric\ndef warmup():\n    rubric.get('two')\n"
        "if __name__ == '__main__':\n    print(rubric.AT_ONCE, rubric.get('two'))"
    )
    for changed in ({"one": "old"}, {"one": "newer"}, {"two": "appeared"}):
        for name, text in changed.items():
            (tmp_path / name).write_text(text)
        told = [(await box.run_script(path, warm=warm)).text for warm in (True, True, False)]
        assert len(set(told)) == 1, told
    assert told[0] == "newer appeared\n"
    assert counted.forked == 6


async def test_a_new_file_that_hides_a_module_is_seen(box, script, tmp_path, counted):
    path = script("import colorsys\nprint(getattr(colorsys, 'MINE', None))")
    assert (await box.run_script(path, warm=True)).text == "None\n"
    (zygote,) = keeper()._zygotes.values()
    (tmp_path / "of no interest.txt").write_text("")
    assert (await box.run_script(path, warm=True)).text == "None\n"
    assert keeper()._zygotes[zygote.script] is zygote
    (tmp_path / "colorsys.py").write_text("MINE = 1")
    assert (await box.run_script(path, warm=True)).text == "1\n"
    assert counted.forked == 3


async def test_what_the_compiler_warns_of_is_said(box, script, counted):
    path = script("import warnings\nwarnings.simplefilter('ignore')\nx = 1\nprint(x is 1)\nassert (x, 'always')")
    seen = [await box.run_script(path, warm=warm) for warm in (False, True, True)]
    assert len({(r.exit_code, r.stdout, r.stderr) for r in seen}) == 1
    assert seen[0].stderr.count(b"SyntaxWarning") == 2
    assert counted.forked == 2


async def test_byte_code_is_put_beside_a_module(box, script, tmp_path, counted):
    (tmp_path / "helper.py").write_text("X = 1")
    assert (await box.run_script(script(SHOWS), warm=True)).text == "1\n"
    assert list((tmp_path / "__pycache__").glob("helper.*.pyc"))
    assert counted.forked == 1


async def test_the_agent_of_ours_is_warm(box, counted):
    """The verifiers are held to it beside their verdicts."""
    cold, warm = [await box.run_script(BASH_AGENT, stdin=b"{}", warm=warm) for warm in (False, True)]
    assert (cold.exit_code, cold.stdout, cold.stderr) == (warm.exit_code, warm.stdout, warm.stderr)
    assert (counted.forked, counted.cold) == (1, {})
