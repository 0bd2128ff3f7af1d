"""The runner: a program of 225 bytes that carries out steps (see steps.py). It needs no library and no interpreter.

It reads one message from its standard input, a socket, and makes the calls that are written there, one after the other.
A call that is refused, and says not where to go on, is told on the same socket and ends it. What takes a fork of an
interpreter a thousand page faults takes it none, so that a box is made at the speed of the kernel. It lies in a sealed
file in memory. Where that cannot be run, or on other processors, a fork of the warden does the same steps.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import platform
import signal
import socket
import struct
from collections.abc import Sequence

from .steps import KNOWN, ROW, SIZE, Blank, Steps

BASE = 0x500000
"""Where the runner keeps its steps."""
MOST = 0x20000
"""Bytes of them that it reads."""
_CODE_AT = 0x400000
_CODE = {
    "x86_64": """
        31ff be00005000 ba00000200 31c0 0f05        read(0, BASE, MOST)
        4885c0 0f8ebc000000                         nothing: end
        bb00005000                                  rbx = BASE
        4c8b6338                                    next: r12 = which arguments are answers
        488b7b08 41f6c401 7403 488b3f               rdi = argument, or what lies there
        488b7310 41f6c402 7403 488b36               rsi
        488b5318 41f6c404 7403 488b12               rdx
        4c8b5320 41f6c408 7403 4d8b12               r10
        4c8b4328 41f6c410 7403 4d8b00               r8
        4c8b4b30 41f6c420 7403 4d8b09               r9
        488b03 0f05                                 the call
        483d01f0ffff 7328                           refused: go below
        488b4b40 4885c9 7403 488901                 keep the answer where it is wanted
        488b4b50 4885c9 740a 4885c0 7e05            above zero, and that leads somewhere:
        4889cb eb82                                 rbx = there, to next
        4883c358 e979ffffff                         rbx += 88, to next
        488b4b48 4885c9 7408                        a refusal that leads somewhere:
        4889cb e968ffffff                           rbx = there, to next
        53 50 4889e6 31ff ba10000000                tell the answer and the place,
        41ba00400000 4531c0 4531c9 b82c000000 0f05  sendto(0, .., 16, MSG_NOSIGNAL)
        bf01000000 b8e7000000 0f05                  exit_group(1)
    """
}
"""Machine code with what it does, by the processor that runs it."""
NATIVE = platform.machine() in _CODE
"""Whether the runner runs here. Elsewhere a fork of the warden does the same steps."""
_MACHINES = {"x86_64": 62}
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
Text = bytes | Sequence[bytes]
_libc = ctypes.CDLL(None, use_errno=True)


def code() -> bytes:
    """The bytes of the listing above; empty for a processor that has none."""
    lines = _CODE.get(platform.machine(), "").splitlines()
    return bytes.fromhex("".join(line[8:52] for line in lines))


def program() -> bytes:
    """The whole file: a header, three segments (code, steps, a stack that cannot be run) and the code."""
    here = code()
    begin = 64 + 3 * 56
    head = struct.pack(
        "=16sHHIQQQIHHHHHH",
        *(b"\x7fELF\x02\x01\x01", 2, _MACHINES[platform.machine()], 1, _CODE_AT + begin, 64, 0, 0),
        *(64, 56, 3, 64, 0, 0),
    )
    size = begin + len(here)
    segments = (
        (1, 5, 0, _CODE_AT, _CODE_AT, size, size, 4096),
        (1, 6, 0, BASE, BASE, 0, MOST, 4096),
        (0x6474E551, 6, 0, 0, 0, 0, 0, 16),
    )
    return head + b"".join(struct.pack("=IIQQQQQQ", *segment) for segment in segments) + here


def _put(image: bytearray, text: Text) -> int:
    """Write a text, or a list of texts as programs are given it, behind the steps; its address."""
    if isinstance(text, bytes):
        address = BASE + len(image)
        image += text + b"\0"
        return address
    places = [*(_put(image, one) for one in text), 0]
    image += bytes(-len(image) % 8)
    address = BASE + len(image)
    image += struct.pack(f"={len(places)}Q", *places)
    return address


@functools.cache
def _file() -> str:
    """The path of the runner."""
    fd = os.memfd_create("box", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, program())
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return f"/proc/self/fd/{fd}"


class Work:
    """Steps that were written down, ready to be begun any number of times. `blanks` are filled in each time. Work that
    `forks` is done by a fork of this process where the runner cannot be run; it has no blanks, and ends soon."""

    def __init__(self, steps: Steps, blanks: Sequence[Blank] = (), *, forks: bool = False) -> None:
        self.steps = steps
        self._forks = forks
        self._image, self._places = steps.image(BASE, blanks)

    def begin(self, fds: Sequence[int] = (), texts: Sequence[Text] = ()) -> tuple[int, socket.socket]:
        """Start it in a session of its own, with `fds` as descriptors from 3 on and `texts` in its blanks. The pid, by
        which its process group is called, and a socket on which it tells what the steps say, or why it failed; it ends
        with the work."""
        image = bytearray(self._image)
        for place, text in zip(self._places, texts, strict=True):
            struct.pack_into("=Q", image, place, _put(image, text))
        if len(image) > MOST:
            raise OSError(f"{len(image)} bytes of steps are too many")
        return self._start(image, fds)

    def _start(self, image: bytearray, fds: Sequence[int]) -> tuple[int, socket.socket]:
        if not KNOWN:
            raise OSError("the calls of this processor have no numbers here")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            with theirs:
                pid = self._spawn(theirs.fileno(), fds)
                ours.send(image)
        except BaseException:
            ours.close()
            raise
        return pid, ours

    def _spawn(self, link: int, fds: Sequence[int]) -> int:
        if NATIVE:
            try:
                return self._run(link, fds)
            except OSError:
                if not self._forks:
                    raise
        if not self._forks:
            raise OSError("there is no runner for this machine")
        return self._fork(link, fds)

    def _run(self, link: int, fds: Sequence[int]) -> int:
        nothing = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_RDWR, 0)
        actions = [(os.POSIX_SPAWN_DUP2, link, 0), nothing, (os.POSIX_SPAWN_DUP2, 1, 2)]
        actions += [(os.POSIX_SPAWN_DUP2, fd, 3 + number) for number, fd in enumerate(fds)]
        return os.posix_spawn(_file(), ["box"], {}, file_actions=actions, setsid=True, setsigdef=_IGNORED)

    def _fork(self, link: int, fds: Sequence[int]) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setsid()
            for number, fd in enumerate((link, -1, -1, *fds)):
                if fd >= 0:
                    os.dup2(fd, number)
            os.read(0, MOST)  # What it says is known here. Left unread, it would cut off the answer.
            os.write(0, self._carry_out())
        finally:
            os._exit(1)

    def _carry_out(self) -> bytes:
        """The same as the code of the runner. It comes back where a call was refused, with the record of it."""
        memory = ctypes.create_string_buffer(MOST)
        place = start = ctypes.addressof(memory)
        image, _ = self.steps.image(start)
        ctypes.memmove(memory, image, len(image))
        while True:
            number, *arguments, answers, kept, refused, positive = ROW.unpack_from(memory, place - start)
            for index in range(6):
                if answers >> index & 1:
                    arguments[index] = ctypes.c_uint64.from_address(arguments[index]).value
            answer = _libc.syscall(number, *(ctypes.c_uint64(value) for value in arguments))
            if answer < 0 and not refused:
                return struct.pack("=qQ", -ctypes.get_errno(), place - start + BASE)
            if answer >= 0 and kept:
                ctypes.c_uint64.from_address(kept).value = answer
            onward = refused if answer < 0 else positive if answer > 0 else 0
            place = onward or place + SIZE
