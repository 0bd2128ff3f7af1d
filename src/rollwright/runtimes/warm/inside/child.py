# mypy: ignore-errors
# Runs under the interpreter of a script, which may be older than ours: plain Python 3.10, unannotated.
"""The life of a forked child: it waits for a call, takes its seat, becomes the script, and ends as that ends.

All of it is rehearsed in the zygote, so far as that leaves no trace. What Python finds out about code that runs for the
first time it writes down, all over its memory, and each page that a child writes to is a page to copy.
"""

import _socket
import array
import contextlib
import ctypes
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
_thread_state = ctypes.PyDLL(None).PyThreadState_Get
_thread_state.restype = ctypes.c_void_p
_WORDS = 64


def receive(sock):
    """The next packet and the descriptors that came with it; an empty one where nobody is left to send any."""
    packet, extra, _, _ = sock.recvmsg(PACKET, ROOM, socket.MSG_CMSG_CLOEXEC)
    return packet, descriptors(extra)


def descriptors(extra):
    fds = array.array("i")
    for _, _, data in extra:
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return fds


class Forked(BaseException):
    """Carries a new child up to the bottom of its stack: a script is run there, as a cold interpreter runs it."""

    def __init__(self, own):
        self.own = own


def live(server, own):
    """Wait for the one call that comes on `own` and become its script; no return where the zygote ends first."""
    try:
        packet, fds = receive(own)
        own.close()
        if not packet:
            os._exit(0)
        _take_seat(server, packet, fds)
    except BaseException:
        os._exit(1)


def _take_seat(server, packet, fds):
    """A seat that cannot be taken is told, and the host runs the script cold.

    The call is read here and not before the fork: pages that the zygote writes to are copied for it as well, while a
    child lives, so that nothing is saved by working ahead.
    """
    try:
        told = _read(packet, fds)
        if server.refusal or not server.script.suits(told["env"]):
            raise loading.Refused(server.refusal or "environment")
        seating.take(told, fds[:3], *fds[3:])
    except BaseException as error:
        server.send(b"F", HEAD.unpack_from(packet)[1], f"{type(error).__name__}: {error}".encode()[:2000])
        os._exit(0)
    server.let_go()
    server.script.become_main(told["argv"])


def _read(packet, fds):
    told, _ = _read_json((packet[HEAD.size :] or _whole(fds.pop(0))).decode(), 0)
    return told


def _whole(fd):
    """The description of a call that was too long for a packet."""
    with open(fd, "rb") as file:
        return file.read()


def make_room():
    """Let a script go as deep as in a cold run, though a frame lies below it, and the call that runs it.

    The interpreter counts its depth in a word of its own, known by how it moves. Where none does so, nothing is done.
    """
    address = _thread_state()

    def words(depth):
        return words(depth - 1) if depth else list((ctypes.c_int * _WORDS).from_address(address))

    names = {"words": words}
    exec("found = words(0)", names)
    none, one, three = words(0), words(1), words(3)
    steps = [(at, one[at] - none[at]) for at in range(_WORDS)]
    counts = [at for at, step in steps if abs(step) == 1 and three[at] - one[at] == 2 * step]
    if len(counts) == 1:
        word = ctypes.c_int.from_address(address + counts[0] * ctypes.sizeof(ctypes.c_int))
        word.value -= names["found"][counts[0]] - none[counts[0]]


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
        loading.rehearse()
        ending.rehearse()
        with contextlib.suppress(Forked):
            raise Forked(theirs)
