"""Sockets that live in another network namespace, held by this process. A socket stays where it was made.

So a box that has no network of its own gets a listener on its loopback whose connections are accepted out here, and
nothing has to run inside it. It needs the right to enter namespaces (root, as a rule); nothing else does.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Callable

from rollwright.wire import RuntimeFault

_CLONE_NEWNET = 0x40000000
_BACKLOG = 128


def listener_in(pid: int, port: int = 0) -> socket.socket:
    """A listening socket on the loopback of the network namespace of process `pid`; blocks for well under 1 ms."""

    def make() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(("127.0.0.1", port))
            made.listen(_BACKLOG)
            made.setblocking(False)
        except BaseException:
            made.close()
            raise
        return made

    return _inside(pid, make)


def socket_in(pid: int) -> socket.socket:
    """A TCP socket that connects from inside the network namespace of process `pid`. It does not block."""

    def make() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setblocking(False)
        return made

    return _inside(pid, make)


def _inside(pid: int, make: Callable[[], socket.socket]) -> socket.socket:
    """Run `make` in the namespace. A thread of its own enters and then ends: none has to find its way back."""
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def work() -> None:
        try:
            _enter(pid)
            made.append(make())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=work, name=f"netns of {pid}")
    thread.start()
    thread.join()
    if failed:
        raise RuntimeFault(f"could not open a socket in the network of process {pid}: {failed[0]}") from failed[0]
    return made[0]


def _enter(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(fd, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(fd)
