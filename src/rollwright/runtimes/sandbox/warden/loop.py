"""Waiting for many descriptors, and messages with descriptors in them. One thread, no timers."""

from __future__ import annotations

import array
import json
import os
import select
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

MESSAGE_LIMIT = 65536
FD_LIMIT = 8
_NOTES = socket.CMSG_SPACE(4 * FD_LIMIT) + socket.CMSG_SPACE(12)
_SCM_CREDENTIALS = 2


class Loop:
    """Calls whoever asked for a descriptor when it can be read, or was closed at the other end."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._calls: dict[int, Callable[[], None]] = {}
        self.ended = False

    def watch(self, fd: int, call: Callable[[], None]) -> None:
        self._calls[fd] = call
        self._poll.register(fd, select.EPOLLIN)

    def watches(self, fd: int) -> bool:
        return fd in self._calls

    def forget(self, fd: int) -> None:
        if self._calls.pop(fd, None) is not None:
            with suppress(OSError):
                self._poll.unregister(fd)

    def run(self) -> None:
        while not self.ended:
            for fd, _ in self._poll.poll():
                call = self._calls.get(fd)
                if call is not None:
                    call()


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message, or None at the end of the conversation."""
    message = receive_bytes(channel)
    return None if message is None else (json.loads(message[0]), message[1])


def receive_bytes(channel: socket.socket) -> tuple[bytes, list[int]] | None:
    try:
        data, fds, _, _ = socket.recv_fds(channel, MESSAGE_LIMIT, FD_LIMIT)
    except ConnectionError:
        return None
    if not data:
        return None
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, list(fds)


class Heard:
    """What a runner told, and who it is."""

    def __init__(self, word: bytes, fds: list[int], pid: int) -> None:
        self.word = word
        self.fds = fds
        self.pid = pid


def hear(link: socket.socket) -> Heard | None:
    """The next that a runner tells; None where it is gone."""
    try:
        data, notes, _, _ = link.recvmsg(4096, _NOTES)
    except ConnectionError:
        return None
    fds, pid = array.array("i"), 0
    for level, kind, note in notes:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(note)
        elif (level, kind) == (socket.SOL_SOCKET, _SCM_CREDENTIALS):
            pid = struct.unpack_from("=i", note)[0]
    for fd in fds:
        os.set_inheritable(fd, False)
    return Heard(data, list(fds), pid) if data else None


def send(channel: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send, unless nobody is there to read it: the end of the channel tells the rest."""
    with suppress(OSError):
        socket.send_fds(channel, [json.dumps(message).encode()], list(fds))


def read_all(fd: int) -> bytes:
    parts = []
    while part := os.read(fd, 65536):
        parts.append(part)
    return b"".join(parts)
