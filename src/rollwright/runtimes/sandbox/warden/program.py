"""Starting a program in a box, as steps for the runner.

The runner enters the box and goes on in a child, since the namespace of process ids is that of the children of whoever
enters. The child is made a child of the warden, which so learns how the program ends. It tells that it is born, gives
up what programs of a box do not have, and becomes the program, by which its socket is closed; or it tells that it could
not.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
from collections.abc import Mapping
from typing import Any

from . import kernel
from .entry import INSIDE
from .furnish import tell
from .privileges import confine_writes, drop_privileges, handle_signals
from .runner import Text, Work
from .steps import SKIP, Blank, Buffer, Label, Steps

BORN, REFUSED = b"born", b"refused"
_BOX, _STREAMS = 3, (4, 5, 6)
"""Descriptors that it begins with: the first process of the box, and what become the streams of the program."""
_LINK = 9
_TRIES = 12
"""Directories of PATH that are tried; a program whose search is longer is started otherwise."""


def work_of(order: Mapping[str, Any], seccomp: bytes) -> Work:
    """How every program is started whose order has the same groups, limits and places. What differs is in `texts`."""
    steps, leave, gone = Steps(), Label(), Label()
    doors, cwd = [Blank() for _ in order["cgroups"]], Blank()
    argv, env, paths = Blank(), Blank(), [Blank() for _ in range(_TRIES)]
    for door in doors:
        opened = steps.call("openat", kernel.AT_FDCWD, door, os.O_WRONLY | os.O_CLOEXEC)
        steps.call("write", opened, "0", 1)
        steps.call("close", opened)
    steps.call("setns", _BOX, INSIDE | (kernel.CLONE_NEWNET if order["own_network"] else 0))
    steps.call("clone", kernel.CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0, positive=leave)
    tell(steps, [], Buffer(BORN))
    steps.call("setsid")
    steps.call("chdir", cwd)
    handle_signals(steps, {})
    confine_writes(steps, order["writable"])
    steps.call("dup3", 0, _LINK, os.O_CLOEXEC)
    _bound(steps, order["limits"])
    drop_privileges(steps, seccomp)
    for number, fd in enumerate(_STREAMS):
        steps.call("dup3", fd, number, 0, refused=gone)
    for fd in (_BOX, *_STREAMS):
        steps.call("close", fd)
    for path in paths:
        steps.call("execve", path, argv, env, refused=SKIP)
    steps.mark(gone)
    steps.call("write", _LINK, REFUSED, len(REFUSED), refused=leave)
    steps.mark(leave)
    steps.call("exit_group", 0)
    return Work(steps, [*doors, cwd, argv, env, *paths])


def texts(order: Mapping[str, Any]) -> list[Text]:
    """What the blanks of `work_of` are filled with. OSError where there is no room for it."""
    words = [os.fsencode(word) for word in order["argv"]]
    env = [os.fsencode(f"{name}={value}") for name, value in order["env"].items()]
    paths = list(_paths(words[0], os.fsencode(order["env"].get("PATH", os.defpath))))
    if len(paths) > _TRIES:
        raise OSError(f"{len(paths)} directories are too many to look for a program in")
    doors = [os.fsencode(door) for door in order["cgroups"]]
    return [*doors, os.fsencode(order["cwd"]), words, env, *paths, *[b""] * (_TRIES - len(paths))]


def _paths(name: bytes, search: bytes) -> list[bytes]:
    if b"/" in name:
        return [name]
    return [os.path.join(directory, name) for directory in search.split(b":")]


def _bound(steps: Steps, limits: Mapping[str, int]) -> None:
    for name, value in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        steps.call("prlimit64", 0, kind, Buffer(struct.pack("=QQ", value, value)), 0)
