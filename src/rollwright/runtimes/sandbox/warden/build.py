"""Making a box without help: its namespaces, its root and what is mounted in it, by one fork of the warden.

The fork is born in new namespaces as the first process of the box: it mounts, gives up every privilege and becomes a
small program that only waits. What is done here is what the words for bwrap ask for, at a third
of the cost: bwrap reads the table of all mounts again for each one it makes. Where the kernel refuses any of it, the
box is made by bwrap, which an administrator may have allowed more.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from . import kernel
from .furnish import settle
from .loop import send

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
_GUARDED = ("sys", "sysrq-trigger", "irq", "bus")
"""Parts of /proc that are the whole machine's; where the owner is root, their modes keep nobody out."""
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def start_first(order: dict[str, Any], seccomp: bytes, stdin: int) -> tuple[int, socket.socket]:
    """Begin a box. Its first process, and a socket on which one message comes: `error` (empty where all is well) with
    descriptors. The socket ends when the process waits, or died; an error may still come before that."""
    user, group = os.geteuid(), os.getegid()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own_network = "net" in order["plan"]["spaces"]
    try:
        pid = kernel.fork_into(_SPACES | (kernel.CLONE_NEWNET if own_network else 0))
    except OSError:
        ours.close()
        theirs.close()
        raise
    if pid:
        theirs.close()
        return pid, ours
    try:
        _map(0, user, group)
        send(theirs, {"error": ""}, _make_inside(order))
        _become_first(order, seccomp, stdin)
    except BaseException as error:
        send(theirs, {"error": str(error) or repr(error)})
    finally:
        os._exit(0)


def _map(inside: int, user: int, group: int) -> None:
    """Who the owner is in the user namespace that was just made."""
    for file, words in (("setgroups", "deny"), ("uid_map", f"{inside} {user} 1"), ("gid_map", f"{inside} {group} 1")):
        fd = os.open(f"/proc/self/{file}", os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, words.encode())
        os.close(fd)


def _make_inside(order: dict[str, Any]) -> Sequence[int]:
    os.setsid()
    root = order["root"]
    kernel.keep_mounts_private()
    # Everything is picked up before the new root covers a part of what the host shows.
    shown = [(path, kernel.pick_up(source), os.path.isdir(source)) for source, path in root["binds"]]
    devices = [(name, kernel.pick_up(f"/dev/{name}")) for name in _DEVICES]
    kernel.mount("box", _ROOT, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755")
    os.chdir(_ROOT)
    for path in (*root["directories"], "/proc", "/dev/pts", "/dev/shm"):
        os.makedirs(f".{path}", exist_ok=True)
    for target, path in root["links"]:
        _link(target, path)
    _show(shown)
    _make_proc()
    _make_dev(devices)
    kernel.change_root()
    os.chdir("/")
    # Before anything of it is shown elsewhere: a mount is as writable as the one it is taken from.
    kernel.restrict("/", _SHOWN)
    made = settle(order["plan"])
    socket.sethostname(root["hostname"])
    if "net" in order["plan"]["spaces"]:
        _raise_loopback()
    return made


def _link(target: str, path: str) -> None:
    os.makedirs(os.path.dirname(f".{path}"), exist_ok=True)
    os.symlink(target, f".{path}")


def _show(trees: Iterable[tuple[str, int, bool]]) -> None:
    for path, tree, is_directory in trees:
        kernel.restrict_tree(tree, _SHOWN)
        if is_directory:
            os.makedirs(f".{path}", exist_ok=True)
        else:
            os.makedirs(os.path.dirname(f".{path}"), exist_ok=True)
            _make_file(f".{path}")
        _put(tree, f".{path}")


def _make_proc() -> None:
    kernel.mount("proc", "proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC, "")
    for name in _GUARDED:
        if os.access(f"proc/{name}", os.W_OK):
            tree = kernel.pick_up(f"proc/{name}")
            kernel.restrict_tree(tree, _SHOWN)
            _put(tree, f"proc/{name}")


def _make_dev(devices: Iterable[tuple[str, int]]) -> None:
    for name, tree in devices:
        kernel.restrict_tree(tree, kernel.ATTR_NOSUID)
        _make_file(f"dev/{name}")
        _put(tree, f"dev/{name}")
    for name, target in _DEV_LINKS.items():
        os.symlink(target, f"dev/{name}")
    kernel.mount(
        "devpts", "dev/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620"
    )


def _make_file(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))


def _put(tree: int, path: str) -> None:
    kernel.put_down(tree, path)
    os.close(tree)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        found = fcntl.ioctl(link.fileno(), _SIOCGIFFLAGS, struct.pack("16sH22x", b"lo", 0))
        flags = struct.unpack_from("16sH", found)[1] | _IFF_UP
        fcntl.ioctl(link.fileno(), _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags))


def _become_first(order: dict[str, Any], seccomp: bytes, stdin: int) -> None:
    """Give up every privilege, and wait. It ends with its standard input, and is killed with the warden."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for number, fd in enumerate((stdin, null, null)):
        os.dup2(fd, number)
    kernel.unshare(kernel.CLONE_NEWUSER)
    # The namespaces belong to the user namespace above this one: nobody in here may change them.
    _map(order["root"]["user"], 0, 0)
    for number in range(1, signal.NSIG):
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    # The kernel buries orphans where their ends are ignored.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    kernel.drop_privileges(seccomp)
    kernel.die_with_parent()
    argv = order["root"]["first"]
    os.execvpe(argv[0], argv, order["env"])
