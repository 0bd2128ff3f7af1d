"""The places of a box that programs may write: mounted at its start, and thrown away and mounted anew at a reset.

Each is a file system in memory with a bound of its own. The workspace may lie over a template: then it is an overlay
whose upper layer is in memory, and a reset costs the same however large the template is. Runs inside of the box.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from . import kernel
from .entry import kill_everything

_QUIET = kernel.MS_NOSUID | kernel.MS_NODEV
_LAYERS = "/run/layers"
_EMPTY = _LAYERS
"""A directory with nothing in it, while nothing is mounted there."""
_GONE_S = 10.0
_FEW = 8
_PF_EXITING = 4
_NETLINK_SOCK_DIAG = 4


def settle(plan: dict[str, Any]) -> Sequence[int]:
    """What is done once, at the start: cover what the plan hides, then furnish. The answer begins with a socket that
    asks the box's network who listens in it."""
    diag = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
    for path in plan["hidden"]:
        kernel.bind(_EMPTY if os.path.isdir(path) else os.devnull, path)
    return [diag.detach(), *furnish(plan)]


def furnish(plan: dict[str, Any]) -> Sequence[int]:
    """Mount every place of `plan` anew. What the plan shows below a place is carried over. The answer is the upper
    directory of an overlay, by which the owner sees what was changed without walking the template."""
    carried = [(path, kernel.pick_up(path)) for path in plan["carried"]]
    uppers = []
    for place in plan["places"]:
        while kernel.unmount(place["path"]):
            pass
        uppers += _mount(place, plan)
    for path, tree in carried:
        _make_place(path)
        kernel.put_down(tree, path)
    for path in plan["directories"]:
        os.mkdir(path, 0o700)
    return uppers


def clear(plan: dict[str, Any]) -> Sequence[int]:
    """End everything that runs in the box, see it gone, and furnish it anew."""
    deadline = time.monotonic() + _GONE_S
    pause_s = 0.0001
    struck: set[str] = set()
    while left := running():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(left)} processes are still there after {_GONE_S:g} s of killing")
        # A few are ended one by one, which needs no fork. Whoever is new then slipped through, and all go at once.
        if not struck and len(left) <= _FEW:
            _kill_each(left)
        elif pause_s > 0.01 or not struck.issuperset(left):
            kill_everything()
        struck.update(left)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)
    return furnish(plan)


def _kill_each(names: Sequence[str]) -> None:
    """A directory of /proc stands for its process, whatever becomes of the number."""
    for name in names:
        with suppress(OSError):
            handle = os.open(f"/proc/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def running() -> list[str]:
    """Processes of the box besides its first; those that ended and wait for their parent do not count."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                if file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X"):
                    found.append(name)
    return found


def is_exiting(pid: int) -> bool:
    """Whether a process is on its way out. The first process of a box stays there until all others are reaped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return bool(int(file.read().rpartition(b")")[2].split()[6]) & _PF_EXITING)
    except OSError:
        return True


def _mount(place: dict[str, Any], plan: dict[str, Any]) -> list[int]:
    bounds = f"size={plan['size_mb']}m,nr_inodes={plan['inodes']}"
    if not place["lower"]:
        kernel.mount("box", place["path"], "tmpfs", _QUIET, f"{bounds},mode={place['mode']}")
        return []
    while kernel.unmount(_LAYERS):
        pass
    kernel.mount("box", _LAYERS, "tmpfs", _QUIET, f"{bounds},mode=700")
    os.mkdir(f"{_LAYERS}/upper", int(place["mode"], 8))
    os.mkdir(f"{_LAYERS}/work", 0o700)
    layers = f"lowerdir={place['lower']},upperdir={_LAYERS}/upper,workdir={_LAYERS}/work,userxattr"
    kernel.mount("box", place["path"], "overlay", _QUIET, layers)
    upper = os.open(f"{_LAYERS}/upper", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    # The layers live on below the overlay; programs must not reach them by another way.
    kernel.unmount(_LAYERS)
    return [upper]


def _make_place(path: str) -> None:
    """Something to mount on, like what is carried over: the caller carries directories only."""
    os.makedirs(path, exist_ok=True)
