"""Entering a box: a program that becomes part of it, and short errands inside of it.

Two forks lead in, since the namespace of process ids is that of the children of whoever enters. The second is made a
child of the warden, which so learns how the program ends.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from . import kernel
from .loop import send

INSIDE = kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
"""What every program of a box enters; the network only where the box has its own."""
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
"""What this process ignores, and the programs it starts must not."""
_NOT_FOUND = 127
_NOT_RUNNABLE = 126


def start_keeper(argv: list[str], env: dict[str, str], fds: Sequence[int]) -> int:
    """Start bwrap with `fds` as its descriptors from 0 on. The first process of the box ignores the ends of its
    children, so that the kernel buries orphans: what is left unhandled is inherited."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        for ignored in IGNORED:
            signal.signal(ignored, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        os.execve(argv[0], argv, env)
    except BaseException as error:
        os.write(2, str(error).encode())
    finally:
        os._exit(_NOT_RUNNABLE)


def start_program(box: int, order: dict[str, Any], streams: Sequence[int], seccomp: bytes) -> tuple[int, int]:
    """Start a program in the box that the handle `box` belongs to. The pid of the fork on the way, and a pipe that
    tells the pid of the program, then an error if there was one, and ends when the program runs."""
    telling, told = os.pipe()
    pid = os.fork()
    if pid:
        os.close(told)
        return pid, telling
    try:
        for place in order["cgroups"]:
            with open(place, "w") as file:
                file.write("0")
        if os.geteuid() == 0:
            os.setgroups([])
        kernel.setns(box, INSIDE | (kernel.CLONE_NEWNET if order["own_network"] else 0))
        child = kernel.fork_as_sibling()
        if child:
            os.write(told, b"%d\n" % child)
            os._exit(0)
        _become(order, streams, seccomp)
    except BaseException as error:
        os.write(told, f"!{error}".encode())
    finally:
        os._exit(_NOT_RUNNABLE)


def _become(order: dict[str, Any], streams: Sequence[int], seccomp: bytes) -> None:
    os.setsid()
    os.chdir(order["cwd"])
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    for name, value in order["limits"].items():
        hard = resource.getrlimit(getattr(resource, name))[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(getattr(resource, name), (value, value))
    for ignored in IGNORED:
        signal.signal(ignored, signal.SIG_DFL)
    _confine_writes(order["writable"])
    kernel.drop_privileges(seccomp)
    try:
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except OSError as error:
        os.write(2, f"{order['argv'][0]}: {error.strerror}\n".encode())
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError | NotADirectoryError) else _NOT_RUNNABLE)


def _confine_writes(places: Sequence[str]) -> None:
    """A second wall behind the read-only mounts, where the kernel has landlock."""
    landlock = import_module("landlock")
    if landlock.available():
        ruleset = landlock.make_ruleset(places)
        landlock.restrict_thread(ruleset)
        os.close(ruleset)


def errand(box_pid: int, work: Callable[[], Sequence[int]], kinds: Sequence[str]) -> tuple[int, socket.socket]:
    """Do `work` in a fork that entered the namespaces `kinds` of the box as their master. The pid of the fork, and a
    socket on which one message comes: `error` (empty where all is well) with the descriptors that the work made."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    try:
        _enter(box_pid, kinds)
        send(theirs, {"error": ""}, work())
    except BaseException as error:
        send(theirs, {"error": str(error) or repr(error)})
    finally:
        os._exit(0)


def _enter(box_pid: int, kinds: Sequence[str]) -> None:
    spaces = [os.open(f"/proc/{box_pid}/ns/{kind}", os.O_RDONLY) for kind in kinds]
    # The mounts and the network belong to the outer of the box's two user namespaces; only there may they be changed.
    master = kernel.owner_of(os.open(f"/proc/{box_pid}/ns/mnt", os.O_RDONLY))
    kernel.setns(master, kernel.CLONE_NEWUSER)
    for space in spaces:
        kernel.setns(space, 0)
