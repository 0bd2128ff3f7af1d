"""The places of a box that programs may write: mounted at its start, and thrown away and mounted anew at a reset.

Each is a file system in memory with a bound of its own. The workspace may lie over a template: then it is an overlay
whose upper layer is in memory, and a reset costs the same however large the template is. All of it is steps for the
runner, which carries them out inside of the box.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Sequence
from typing import Any

from . import kernel
from .privileges import allow, make_rules
from .steps import SKIP, Answer, Buffer, Label, Steps

_QUIET = kernel.MS_NOSUID | kernel.MS_NODEV
_LAYERS = "/run/layers"
_EMPTY = _LAYERS
"""A directory with nothing in it, while nothing is mounted there."""
_NETLINK_SOCK_DIAG = 4
_PF_EXITING = 4
_HERE = kernel.AT_FDCWD
_PAUSES_US = (*(40, 40, 60, 80, 100, 150), *[200] * 10, *[500] * 30)
"""How long the runner waits for the ends of those it killed, look by look."""
MASTER, FIRST = 3, 4
"""Descriptors of whoever enters a box: the user namespace that its mounts belong to, and its first process."""
DONE = b"done"
LEFT = b"left"
"""Said of processes that are still there after a while; zombies that nobody buried yet count."""


def settle(steps: Steps, plan: dict[str, Any]) -> list[Answer]:
    """What is done once, at the start: cover what the plan hides, then furnish. The answers begin with a socket that
    asks the box's network who listens in it, a file that counts its sockets, and what tells of the box's IPC (see
    `_watch_ipc`)."""
    _cover_proc(steps)
    diag = steps.call("socket", socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
    for path in plan["hidden"]:
        source = _EMPTY if os.path.isdir(path) else os.devnull
        steps.call("mount", source, path, 0, kernel.MS_BIND, 0)
    counts = [steps.call("openat", _HERE, path, os.O_RDONLY | os.O_CLOEXEC) for path in plan["counts"]]
    return [diag, *counts, *_watch_ipc(steps, plan), *furnish(steps, plan)]


def _watch_ipc(steps: Steps, plan: dict[str, Any]) -> list[Answer]:
    """Descriptors by which the owner sees the objects of this namespace without entering it: a file for each table of
    System V, and a mount, attached nowhere, that holds the message queues of POSIX."""
    watched = [steps.call("openat", _HERE, table, os.O_RDONLY | os.O_CLOEXEC) for table in plan["tables"]]
    if plan["queues"]:
        opened = steps.call("fsopen", "mqueue", kernel.FSOPEN_CLOEXEC)
        steps.call("fsconfig", opened, kernel.FSCONFIG_CMD_CREATE, 0, 0, 0)
        watched.append(steps.call("fsmount", opened, kernel.FSMOUNT_CLOEXEC, kernel.ATTR_NOSUID | kernel.ATTR_NODEV))
        steps.call("close", opened)
    return watched


def _cover_proc(steps: Steps) -> None:
    """Lay /proc over itself, read-only. The settings of the kernel and the modes of what is in there are the whole
    machine's, and in a box of root no mode keeps its programs out; memory and settings of the first process would
    outlive a reset."""
    tree = pick_up(steps, "/proc")
    restrict(steps, tree, "", kernel.AT_EMPTY_PATH | kernel.AT_RECURSIVE, kernel.ATTR_RDONLY)
    attach(steps, tree, "/proc")


def furnish(steps: Steps, plan: dict[str, Any]) -> list[Answer]:
    """Mount every place of `plan`. The answers are rules of landlock for these very places, where the plan has some,
    and the upper directory of an overlay, by which the owner sees what was changed without walking the template."""
    carried, made = _carry(steps, plan), _make_all(steps, plan)
    rules = _make_rules(steps, plan, made)
    return _attach_all(steps, plan, made, carried, rules)


def _carry(steps: Steps, plan: dict[str, Any]) -> list[tuple[str, Answer]]:
    """What the plan shows below a place of its own, to be attached there again."""
    return [(path, pick_up(steps, path)) for path in plan["carried"]]


def _make_all(steps: Steps, plan: dict[str, Any]) -> list[Answer | None]:
    """New file systems for all places, attached nowhere: whoever still runs in the box cannot reach them."""
    return [None if place["lower"] else _make(steps, place, plan) for place in plan["places"]]


def _make_rules(steps: Steps, plan: dict[str, Any], made: Sequence[Answer | None]) -> list[Answer]:
    """Rules of landlock for these very file systems, where the plan has some; an overlay is not there yet."""
    new = {place["path"]: tree for place, tree in zip(plan["places"], made, strict=True)}
    places = [new.get(path, path) for path in plan["writable"]]
    return [make_rules(steps, [place for place in places if place is not None])] if places else []


def _attach_all(
    steps: Steps,
    plan: dict[str, Any],
    made: Sequence[Answer | None],
    carried: Sequence[tuple[str, Answer]],
    rules: Sequence[Answer],
) -> list[Answer]:
    """The answers are `rules`, and the upper directories of overlays."""
    uppers = []
    for place, new in zip(plan["places"], made, strict=True):
        if new is None:
            uppers.append(_overlay(steps, place, plan))
            for one in rules:
                allow(steps, one, place["path"])
        else:
            attach(steps, new, place["path"])
    for path, tree in carried:
        make_directories(steps, path)
        attach(steps, tree, path)
    for path in plan["directories"]:
        steps.call("mkdirat", _HERE, path, 0o700)
    return [*rules, *uppers]


def _throw_away(steps: Steps, paths: Sequence[str]) -> None:
    """Unmount all at once: the kernel waits for every processor at each unmount, and moving a mount waits for none."""
    steps.call("mount", "box", _LAYERS, "tmpfs", _QUIET, "mode=700")
    for number, path in enumerate(paths):
        steps.call("mkdirat", _HERE, f"{_LAYERS}/{number}", 0o700)
        steps.call("move_mount", _HERE, path, _HERE, f"{_LAYERS}/{number}", 0)
    steps.call("umount2", _LAYERS, kernel.MNT_DETACH)


def settling(plan: dict[str, Any]) -> Steps:
    """`settle` in a box that somebody else made."""
    steps = Steps()
    spaces = kernel.CLONE_NEWNET if "net" in plan["spaces"] else 0
    _enter(steps, spaces | kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
    # Devices keep their modes and times. /dev/shm is mounted later.
    restrict(steps, _HERE, "/dev", kernel.AT_RECURSIVE, kernel.ATTR_RDONLY)
    tell(steps, settle(steps, plan))
    steps.call("exit_group", 0)
    return steps


def clearing(plan: dict[str, Any]) -> Steps:
    """Take the old places away and make new ones, wait for a word that nobody is left who could write into them, and
    put them in place. All but the last is done while the killed still end."""
    steps, leave = Steps(), Label()
    _enter(steps, kernel.CLONE_NEWNS)
    carried = _carry(steps, plan)
    _throw_away(steps, [place["path"] for place in plan["places"]])
    made = _make_all(steps, plan)
    rules = _make_rules(steps, plan, made)
    steps.call("read", 0, Buffer(bytes(8)), 8, refused=leave)
    tell(steps, _attach_all(steps, plan, made, carried, rules))
    steps.mark(leave)
    steps.call("exit_group", 0)
    return steps


def ending() -> Steps:
    """End everything that runs in a box whose first process is not ours, and tell whether it is gone."""
    steps, leave, gone = Steps(), Label(), Label()
    _enter(steps, kernel.CLONE_NEWPID)
    steps.call("clone", kernel.CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0, positive=leave)
    end_all(steps, gone)
    tell(steps, [], Buffer(LEFT))
    steps.go(leave)
    steps.mark(gone)
    tell(steps, [])
    steps.mark(leave)
    steps.call("exit_group", 0)
    return steps


def _enter(steps: Steps, spaces: int) -> None:
    """The mounts and the network belong to the outer of the box's two user namespaces; only there may they be
    changed."""
    steps.call("umask", 0o022)
    steps.call("setns", MASTER, kernel.CLONE_NEWUSER)
    steps.call("setns", FIRST, spaces)


def end_all(steps: Steps, gone: Label) -> None:
    """Kill everything but the first process and this one, in one call of the kernel, so that no fork slips through;
    then ask until nobody is there to be killed, which leads to `gone`, or for too long, which leads on."""
    steps.call("prctl", kernel.PR_SET_TIMERSLACK, 1, 0, 0, 0)
    for pause_us in _PAUSES_US:
        steps.call("kill", -1, signal.SIGKILL, refused=gone)
        steps.call("nanosleep", Buffer(struct.pack("=QQ", 0, pause_us * 1000)), 0)
    steps.call("kill", -1, signal.SIGKILL, refused=gone)


def tell(steps: Steps, fds: Sequence[Answer], word: Buffer | None = None) -> None:
    """Send `word` with descriptors on standard input. Each has a header of its own."""
    word = word or Buffer(DONE)
    control = Buffer(struct.pack("=QiiQ", 20, socket.SOL_SOCKET, socket.SCM_RIGHTS, 0) * len(fds))
    for number, fd in enumerate(fds):
        fd.keep(control, 24 * number + 16)
    vector = Buffer(struct.pack("=QQ", 0, len(word.data)), {0: word})
    words = struct.pack("=QI4xQQQQi4x", 0, 0, 0, 1, 0, len(control.data), 0)
    message = Buffer(words, {16: vector, **({32: control} if fds else {})})
    steps.call("sendmsg", 0, message, socket.MSG_NOSIGNAL)


def _make(steps: Steps, place: dict[str, Any], plan: dict[str, Any]) -> Answer:
    """A file system in memory that is attached nowhere."""
    opened = steps.call("fsopen", "tmpfs", kernel.FSOPEN_CLOEXEC)
    options = {"source": "box", "size": f"{plan['size_mb']}m", "nr_inodes": str(plan["inodes"]), "mode": place["mode"]}
    for name, value in options.items():
        steps.call("fsconfig", opened, kernel.FSCONFIG_SET_STRING, name, value, 0)
    steps.call("fsconfig", opened, kernel.FSCONFIG_CMD_CREATE, 0, 0, 0)
    made = steps.call("fsmount", opened, kernel.FSMOUNT_CLOEXEC, kernel.ATTR_NOSUID | kernel.ATTR_NODEV)
    steps.call("close", opened)
    return made


def _overlay(steps: Steps, place: dict[str, Any], plan: dict[str, Any]) -> Answer:
    """Mount an overlay with its upper layer in memory; the answer is the directory of that."""
    upper, work = f"{_LAYERS}/upper", f"{_LAYERS}/work"
    bounds = f"size={plan['size_mb']}m,nr_inodes={plan['inodes']}"
    steps.call("mount", "box", _LAYERS, "tmpfs", _QUIET, f"{bounds},mode=700")
    steps.call("mkdirat", _HERE, upper, int(place["mode"], 8))
    steps.call("mkdirat", _HERE, work, 0o700)
    layers = f"lowerdir={place['lower']},upperdir={upper},workdir={work},userxattr"
    steps.call("mount", "box", place["path"], "overlay", _QUIET, layers)
    opened = steps.call("openat", _HERE, upper, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    # The layers live on below the overlay; programs must not reach them by another way.
    steps.call("umount2", _LAYERS, kernel.MNT_DETACH)
    return opened


def pick_up(steps: Steps, path: str) -> Answer:
    """A copy of the mount at `path`, with all below it, that is attached nowhere."""
    return steps.call("open_tree", _HERE, path, kernel.OPEN_TREE_CLONE | os.O_CLOEXEC | kernel.AT_RECURSIVE)


def attach(steps: Steps, tree: Answer, path: str) -> None:
    steps.call("move_mount", tree, "", _HERE, path, kernel.MOVE_MOUNT_F_EMPTY_PATH)
    steps.call("close", tree)


def restrict(steps: Steps, place: int | Answer, path: str, flags: int, attributes: int) -> None:
    """Add attributes to the mount at `path`, or to a tree that was picked up."""
    wanted = Buffer(struct.pack("=QQQQ", attributes, 0, 0, 0))
    steps.call("mount_setattr", place, path, flags, wanted, len(wanted.data))


def make_directories(steps: Steps, path: str) -> None:
    """With all above it; what is there already stays."""
    parts = path.split("/")
    for number, part in enumerate(parts):
        if part not in ("", "."):
            steps.call("mkdirat", _HERE, "/".join(parts[: number + 1]), 0o755, refused=SKIP)


def running(proc: str) -> list[str]:
    """Processes of a box besides its first, as this directory tells them; those that ended and wait for their parent do
    not count."""
    found = []
    for name in os.listdir(proc):
        if name.isdigit() and name != "1":
            try:
                with open(f"{proc}/{name}/stat", "rb") as file:
                    state = file.read().rpartition(b")")[2].split()[0]
            except OSError:
                continue
            if state not in (b"Z", b"X"):
                found.append(name)
    return found


def is_exiting(pid: int) -> bool:
    """Whether a process is on its way out. The first process of a box stays there until all others are reaped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return bool(int(file.read().rpartition(b")")[2].split()[6]) & _PF_EXITING)
    except OSError:
        return True
