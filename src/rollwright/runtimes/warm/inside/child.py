# mypy: ignore-errors
# Runs under the interpreter of a script, which may be older than ours: plain Python 3.10, unannotated.
"""The life of a forked child: it waits for a call, takes its seat, becomes the script, and ends as that ends.

All of it is rehearsed in the zygote, so far as that leaves no trace. What Python finds out about code that runs for the
first time it writes down, all over its memory, and each page that a child writes to is a page to copy.
"""

import _socket
import array
import json
import os
import socket
import struct

import ending
import loading
import seating

HEAD = struct.Struct("!cQ")
_FDS = array.array("i")
PACKET = 65536
ROOM = socket.CMSG_SPACE(5 * _FDS.itemsize)
# The part of the decoder that is written in C: the rest of it would cost each child some fifty pages.
_read_json = json.JSONDecoder().scan_once
_REHEARSALS = 12


def receive(sock):
    """The next packet and the descriptors that came with it; an empty one where nobody is left to send any."""
    packet, extra, _, _ = sock.recvmsg(PACKET, ROOM, socket.MSG_CMSG_CLOEXEC)
    return packet, descriptors(extra)


def descriptors(extra):
    fds = array.array("i")
    for _, _, data in extra:
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return fds


def live(server, own):
    """One call that comes on `own`, or none where the zygote ends."""
    try:
        packet, fds = receive(own)
        own.close()
    except BaseException:
        os._exit(1)
    if not packet:
        os._exit(0)
    _become_script(server, packet, fds)


def _become_script(server, packet, fds):
    """A seat that cannot be taken is told, and the host runs the script cold.

    The call is read here and not before the fork: pages that the zygote writes to are copied for it as well, while a
    child lives, so that nothing is saved by working ahead.
    """
    status = 1
    try:
        try:
            told = _read(packet, fds)
            if server.refusal or not server.script.suits(told["env"]):
                raise loading.Refused(server.refusal or "environment")
            seating.take(told, fds[:3], *fds[3:])
        except BaseException as error:
            server.send(b"F", HEAD.unpack_from(packet)[1], f"{type(error).__name__}: {error}".encode()[:2000])
            os._exit(0)
        server.let_go()
        status = server.script.run(told["argv"])
    finally:
        ending.leave(status)


def _read(packet, fds):
    told, _ = _read_json((packet[HEAD.size :] or _whole(fds.pop(0))).decode(), 0)
    return told


def _whole(fd):
    """The description of a call that was too long for a packet."""
    with open(fd, "rb") as file:
        return file.read()


def rehearse():
    """Run what children run, in the zygote itself."""
    for _ in range(_REHEARSALS):
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        nothing = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
        packet = HEAD.pack(b"R", 0) + json.dumps(seating.own()).encode()
        ours.sendmsg((packet,), ((_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", nothing)),))
        ours.close()
        for fd in nothing:
            os.close(fd)
        packet, fds = receive(theirs)
        theirs.close()
        seating.rehearse(_read(packet, fds), fds[:3])
        ending.rehearse()
