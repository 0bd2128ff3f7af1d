"""The private packets between this process and a zygote or worker: an id and a kind in front of everything.

Packets keep their borders (SOCK_SEQPACKET), so nobody can be answered with half of somebody else's answer, and nothing
that a script prints can be taken for one. What is larger than a packet travels in a file without a name.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec

HEAD = struct.Struct("!cQ")
NUMBER = struct.Struct("!i")
PACKET_LIMIT = 65536


class ChannelFull(Exception):
    """The other side does not take more at the moment."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Our end, which does not block, and theirs."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


def send(sock: socket.socket, kind: bytes, call: int, fds: Sequence[int] = (), body: bytes = b"") -> None:
    """One packet with copies of `fds`. OSError where the other side is gone."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        sock.sendmsg([HEAD.pack(kind, call), body], rights)
    except BlockingIOError as error:
        raise ChannelFull from error


def packets(sock: socket.socket) -> Iterator[tuple[bytes, int, bytes] | None]:
    """What has arrived, as kind, id and body; None where the other side is gone."""
    while True:
        try:
            packet = sock.recv(PACKET_LIMIT)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            yield None
            return
        kind, call = HEAD.unpack_from(packet)
        yield kind, call, packet[HEAD.size :]


def described(call: Mapping[str, object]) -> bytes:
    """A call as JSON. Words that are no Unicode, as file names may be, are escaped by the slower of two encoders."""
    try:
        return msgspec.json.encode(call)
    except UnicodeEncodeError:
        return json.dumps(call).encode()


def nameless_file(data: bytes) -> int:
    """A descriptor from which `data` can be read; the caller closes it."""
    fd = os.memfd_create("rollwright-call", os.MFD_CLOEXEC)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        with suppress(OSError):
            os.close(fd)
        raise
    return fd
