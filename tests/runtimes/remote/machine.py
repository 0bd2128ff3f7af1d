"""A machine for the servers that play vendors: real processes with process ids, a disk and a network of their own.

Nothing that is done in it reaches this machine, and all of it goes when its first process ends. Its disk is in memory
and has what an image has; programs may write everywhere but in /usr/lib and in Python's own directory, which are this
machine's and are shown read-only. /usr/bin is this machine's below a layer of the box's own.
"""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "LANG": "C.UTF-8"}
"""What the image sets: nothing of this process's environment."""

_TOOLS = ("unshare", "nsenter", "setpriv")
_UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--net", "--ipc", "--uts"]
_FURNISH = Path(__file__).with_name("furnish.py")


def make(*first):
    """The words that make a machine whose first program is `first`. It says "up" on its stdout when all is there."""
    prefix = "" if sys.base_prefix == "/usr" else os.path.realpath(sys.base_prefix)
    python = os.path.realpath(sys.executable) if prefix else ""
    beside = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    uv = shutil.which("uv", path=beside)
    parts = [prefix, python, os.path.realpath(uv) if uv else ""]
    return [*_UNSHARE, os.path.realpath(sys.executable), "-IS", str(_FURNISH), *parts, *first]


def enter(pid):
    """The words before a command that is to run in the machine whose first process has this id out here."""
    return ["nsenter", "-t", str(pid), *["-m", "-p", "-n", "-i", "-u", "-r", "-w"], "--"]


def first_process(holder):
    """The id, out here, of the first process of the machine that the process `holder` made."""
    (pid,) = children_of(holder)
    return pid


def children_of(pid):
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@functools.cache
def why_not():
    """Why no such machine can be had here; empty where one can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} (util-linux) are not here"
    try:
        tried = subprocess.run(make("true"), capture_output=True, timeout=20, text=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no namespaces: {error}"
    return "" if tried.returncode == 0 else f"no namespaces: {tried.stderr.strip()}"
