"""Making a box without help: its namespaces, its root and what is mounted in it, written down as steps for the runner.

The runner makes the namespaces and goes on in a child that is born in them as the first process of the box: it mounts,
gives up every privilege, tells that all is done, and waits. What is done here is what the words for bwrap ask for, at a
tenth of the cost. Where the kernel refuses any of it, the box is made by bwrap, which an administrator may have allowed
more.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Iterable
from typing import Any

from . import kernel
from .furnish import DONE, LEFT, attach, end_all, make_directories, pick_up, restrict, settle, tell
from .privileges import drop_privileges, handle_signals
from .runner import Work
from .steps import SKIP, Answer, Blank, Buffer, Label, Steps

_SPACES = kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
_SHOWN = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | kernel.ATTR_NODEV
_ROOT = "/tmp"
"""Where the new root is put together, in the box's own view; every host has this directory."""
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEV_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "core": "/proc/kcore",
    "ptmx": "pts/ptmx",
}
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_AT_REMOVEDIR = 0x200
_HERE = kernel.AT_FDCWD


def work_of(order: dict[str, Any], seccomp: bytes) -> Work:
    """All that makes the box of `order` with control groups at the paths that are given when it is begun. The first
    process tells on its standard input that it is done, with a number for each group (zero where it could not be made)
    and the descriptors of `settle`; then it waits (see `_serve`), and it ends when that is closed."""
    steps, leave = Steps(), Label()
    word = Buffer(DONE.ljust(8, b"\0") + bytes(8 * len(order["groups"])))
    groups = [Blank() for _ in order["groups"]]
    for number, group in enumerate(order["groups"]):
        _make_group(steps, groups[number], group).keep(word, 8 + 8 * number)
    own_network = "net" in order["plan"]["spaces"]
    steps.call("umask", 0o022)
    steps.call("unshare", _SPACES | (kernel.CLONE_NEWNET if own_network else 0))
    _map(steps, "/proc/self", 0, os.geteuid(), os.getegid())
    steps.call("clone", kernel.CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0, positive=leave)
    _make_root(steps, order["root"])
    # From here /proc can be written through this directory alone, which no program can get at.
    steps.call("chdir", "/proc")
    made = settle(steps, order["plan"])
    steps.call("sethostname", order["root"]["hostname"], len(order["root"]["hostname"]))
    if own_network:
        _raise_loopback(steps)
    _become_first(steps, order["root"]["user"], seccomp)
    tell(steps, made, word)
    for fd in made:
        steps.call("close", fd)
    _serve(steps, leave)
    steps.mark(leave)
    steps.call("exit_group", 0)
    return Work(steps, groups)


def _serve(steps: Steps, leave: Label) -> None:
    """At every word on its standard input, end everything else in the box and tell whether it is gone."""
    listen, asked, gone = Label(), Label(), Label()
    steps.mark(listen)
    steps.call("read", 0, Buffer(bytes(8)), 8, refused=leave, positive=asked)
    steps.go(leave)
    steps.mark(asked)
    end_all(steps, gone)
    tell(steps, [], Buffer(LEFT))
    steps.go(listen)
    steps.mark(gone)
    tell(steps, [])
    steps.go(listen)


def _make_group(steps: Steps, path: Blank, group: dict[str, Any]) -> Answer:
    """A control group with its bounds, or none; the answer is above zero where it is there."""
    done, undo = Label(), Label()
    steps.call("mkdirat", _HERE, path, 0o755, refused=done)
    place = steps.call("openat", _HERE, path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, refused=undo)
    for file, value in group["optional"]:
        missing = Label()
        opened = steps.call("openat", place, file, os.O_WRONLY | os.O_CLOEXEC, refused=missing)
        steps.call("write", opened, value, len(value), refused=SKIP)
        steps.call("close", opened)
        steps.mark(missing)
    for file, value in group["settings"]:
        opened = steps.call("openat", place, file, os.O_WRONLY | os.O_CLOEXEC, refused=undo)
        written = steps.call("write", opened, value, len(value), refused=undo)
        steps.call("close", opened)
    steps.call("close", place)
    steps.go(done)
    steps.mark(undo)
    steps.call("unlinkat", _HERE, path, _AT_REMOVEDIR, refused=SKIP)
    steps.mark(done)
    return written


def _map(steps: Steps, place: str, inside: int, user: int, group: int) -> None:
    """Who the owner is in the user namespace that was just made; `place` is this process in /proc."""
    for file, words in (("setgroups", "deny"), ("uid_map", f"{inside} {user} 1"), ("gid_map", f"{inside} {group} 1")):
        fd = steps.call("openat", _HERE, f"{place}/{file}", os.O_WRONLY | os.O_CLOEXEC)
        steps.call("write", fd, words, len(words))
        steps.call("close", fd)


def _make_root(steps: Steps, root: dict[str, Any]) -> None:
    steps.call("mount", 0, "/", 0, kernel.MS_REC | kernel.MS_SLAVE, 0)
    # Everything is picked up before the new root covers a part of what the host shows.
    shown = [(path, pick_up(steps, source), os.path.isdir(source)) for source, path in root["binds"]]
    devices = [(name, pick_up(steps, f"/dev/{name}")) for name in _DEVICES]
    steps.call("mount", "box", _ROOT, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755")
    steps.call("chdir", _ROOT)
    for path in (*root["directories"], "/proc", "/dev/pts", "/dev/shm"):
        make_directories(steps, f".{path}")
    for target, path in root["links"]:
        make_directories(steps, os.path.dirname(f".{path}"))
        steps.call("symlinkat", target, _HERE, f".{path}")
    _show(steps, shown)
    steps.call("mount", "proc", "proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC, 0)
    _make_dev(steps, devices)
    steps.call("pivot_root", ".", ".")
    steps.call("umount2", ".", kernel.MNT_DETACH)
    steps.call("chdir", "/")
    # Before anything of it is shown elsewhere: a mount is as writable as the one it is taken from.
    restrict(steps, _HERE, "/", 0, _SHOWN)


def _show(steps: Steps, trees: Iterable[tuple[str, Answer, bool]]) -> None:
    for path, tree, is_directory in trees:
        restrict(steps, tree, "", kernel.AT_EMPTY_PATH | kernel.AT_RECURSIVE, _SHOWN)
        if is_directory:
            make_directories(steps, f".{path}")
        else:
            make_directories(steps, os.path.dirname(f".{path}"))
            _make_file(steps, f".{path}")
        attach(steps, tree, f".{path}")


def _make_dev(steps: Steps, devices: Iterable[tuple[str, Answer]]) -> None:
    """Devices are the host's own files. Read-only, they are written to as ever, and keep their modes and times."""
    for name, tree in devices:
        quiet = kernel.ATTR_NOSUID | kernel.ATTR_RDONLY
        restrict(steps, tree, "", kernel.AT_EMPTY_PATH | kernel.AT_RECURSIVE, quiet)
        _make_file(steps, f"dev/{name}")
        attach(steps, tree, f"dev/{name}")
    for name, target in _DEV_LINKS.items():
        steps.call("symlinkat", target, _HERE, f"dev/{name}")
    flags, options = kernel.MS_NOSUID | kernel.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620"
    steps.call("mount", "devpts", "dev/pts", "devpts", flags, options)
    restrict(steps, _HERE, "dev/pts", 0, kernel.ATTR_RDONLY)


def _make_file(steps: Steps, path: str) -> None:
    steps.call("mknodat", _HERE, path, 0o100444, 0, refused=SKIP)


def _raise_loopback(steps: Steps) -> None:
    link = steps.call("socket", socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0)
    steps.call("ioctl", link, _SIOCSIFFLAGS, Buffer(struct.pack("16sH22x", b"lo", _IFF_UP)))
    steps.call("close", link)


def _become_first(steps: Steps, user: int, seccomp: bytes) -> None:
    """Give up every privilege. It is killed with the warden."""
    steps.call("unshare", kernel.CLONE_NEWUSER)
    # The namespaces belong to the user namespace above this one: nobody in here may change them.
    _map(steps, "self", user, 0, 0)
    steps.call("chdir", "/")
    # The kernel buries orphans where their ends are ignored.
    handle_signals(steps, {signal.SIGCHLD: signal.SIG_IGN})
    drop_privileges(steps, seccomp)
    steps.call("prctl", kernel.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
