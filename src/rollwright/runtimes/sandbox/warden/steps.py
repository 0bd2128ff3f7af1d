"""Work for the runner: system calls written down one after the other, with what follows from an answer.

A call names its arguments: numbers, texts and buffers (which are given by address), and answers of calls before it. A
refusal ends the work and is told, unless the call says where to go on. `Steps` writes this down once; `image` is what
the runner reads, 88 bytes for each call and then the texts.
"""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Mapping, Sequence
from typing import Final

_NUMBERS = {
    "x86_64": {
        "read": 0, "write": 1, "close": 3, "ioctl": 16, "nanosleep": 35, "socket": 41, "sendmsg": 46, "clone": 56,
        "kill": 62, "chdir": 80, "umask": 95, "setgroups": 116, "capset": 126, "rt_sigaction": 13, "pivot_root": 155,
        "prctl": 157, "mount": 165, "umount2": 166, "sethostname": 170, "exit_group": 231, "openat": 257,
        "mkdirat": 258, "mknodat": 259, "unlinkat": 263, "symlinkat": 266, "faccessat": 269, "unshare": 272,
        "setns": 308, "setsid": 112, "dup3": 292, "prlimit64": 302, "execve": 59,
    },
    "aarch64": {
        "read": 63, "write": 64, "close": 57, "ioctl": 29, "nanosleep": 101, "socket": 198, "sendmsg": 211,
        "clone": 220, "kill": 129, "chdir": 49, "umask": 166, "setgroups": 159, "capset": 91, "rt_sigaction": 134,
        "pivot_root": 41, "prctl": 167, "mount": 40, "umount2": 39, "sethostname": 161, "exit_group": 94,
        "openat": 56, "mkdirat": 34, "mknodat": 33, "unlinkat": 35, "symlinkat": 36, "faccessat": 48, "unshare": 97,
        "setns": 268, "setsid": 157, "dup3": 24, "prlimit64": 261, "execve": 221,
    },
}  # fmt: skip
_EVERYWHERE = {
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "mount_setattr": 442,
    "landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446,
}  # fmt: skip
NUMBERS: Final = {**_NUMBERS.get(platform.machine(), {}), **_EVERYWHERE}
KNOWN: Final = platform.machine() in _NUMBERS
"""Whether the numbers of this machine's calls are known here."""
SIZE: Final = 88
"""Of a call: number, six arguments, which of them are answers, then three addresses: where its answer is kept, where a
refusal leads, and where an answer above zero leads."""
ROW = struct.Struct("=Q6QQQQQ")


class Buffer:
    """Bytes that a call is given by address, or that answers are put into. `pointers` are addresses of other buffers in
    it, by their places."""

    def __init__(self, data: bytes, pointers: Mapping[int, Buffer] | None = None) -> None:
        self.data = data
        self.pointers = pointers or {}


class Label:
    """A place in the work that is gone to."""

    def __init__(self) -> None:
        self.row = -1


class Answer:
    """What a call answered, as an argument of later ones. It is kept in 8 bytes of its own, or where it is said to."""

    def __init__(self) -> None:
        self.place: tuple[Buffer, int] | None = None

    def keep(self, buffer: Buffer, offset: int) -> None:
        """Put it there, with zeros in the bytes behind it up to the eighth."""
        self.place = buffer, offset

    def kept(self) -> tuple[Buffer, int]:
        self.place = self.place or (Buffer(bytes(8)), 0)
        return self.place


class Blank(Answer):
    """A text, or a list of texts, that is not known yet: it is filled in whenever the work is begun."""


Argument = int | str | bytes | Buffer | Answer
SKIP: Final = Label()
"""Where a refusal leads that does not matter: on."""


class _Call:
    def __init__(self, name: str, arguments: Sequence[Argument], refused: Label | None, positive: Label | None) -> None:
        self.name = name
        self.arguments = [_plain(argument) for argument in arguments]
        self.answer = Answer()
        self.refused = refused
        self.positive = positive

    def told(self) -> str:
        """For people."""
        words = [argument.data.rstrip(b"\0") for argument in self.arguments if isinstance(argument, Buffer)]
        shown = [word.decode() for word in words if word.isascii() and word.decode().isprintable()]
        return " ".join([self.name, *filter(None, shown)])


class _Heap:
    """Where each buffer lies behind the calls."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._at: dict[Buffer, int] = {}
        self.data = bytearray()

    def address(self, buffer: Buffer, offset: int = 0) -> int:
        at = self._at.get(buffer)
        if at is None:
            at = self._at[buffer] = len(self.data)
            self.data += buffer.data + bytes(-len(buffer.data) % 8)
            for place, other in buffer.pointers.items():
                struct.pack_into("=Q", self.data, at + place, self.address(other))
        return self._top + at + offset


class Steps:
    """Work that is being written down."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def call(
        self, name: str, *arguments: Argument, refused: Label | None = None, positive: Label | None = None
    ) -> Answer:
        call = _Call(name, arguments, refused, positive)
        for argument in arguments:
            if isinstance(argument, Answer):
                argument.kept()
        self._calls.append(call)
        return call.answer

    def go(self, label: Label) -> None:
        """Go on at `label`: nobody has such a descriptor."""
        self.call("close", -1, refused=label)

    def mark(self, label: Label) -> None:
        """`label` leads to the next call."""
        label.row = len(self._calls)

    def image(self, base: int, blanks: Sequence[Blank] = ()) -> tuple[bytes, list[int]]:
        """What a runner reads that keeps it at address `base`, and where in it the addresses of `blanks` belong."""
        heap = _Heap(base + SIZE * len(self._calls))
        rows = [self._row(call, number, base, heap) for number, call in enumerate(self._calls)]
        places = [heap.address(*blank.kept()) - base for blank in blanks]
        return b"".join(rows) + heap.data, places

    def why(self, record: bytes, base: int) -> OSError:
        """What the record says that a runner leaves where a call was refused."""
        answer, place = struct.unpack("=qQ", record)
        call = self._calls[(place - base) // SIZE]
        return OSError(-answer, f"{call.told()}: {os.strerror(-answer)}")

    def _row(self, call: _Call, number: int, base: int, heap: _Heap) -> bytes:
        def way(label: Label | None) -> int:
            return 0 if label is None else base + SIZE * (number + 1 if label is SKIP else label.row)

        values, answers = [0] * 6, 0
        for place, argument in enumerate(call.arguments):
            if isinstance(argument, int):
                values[place] = argument & (1 << 64) - 1
            elif isinstance(argument, Buffer):
                values[place] = heap.address(argument)
            else:
                values[place] = heap.address(*argument.kept())
                answers |= 1 << place
        kept = heap.address(*call.answer.place) if call.answer.place is not None else 0
        return ROW.pack(NUMBERS[call.name], *values, answers, kept, way(call.refused), way(call.positive))


def _plain(argument: Argument) -> int | Buffer | Answer:
    if isinstance(argument, str):
        argument = os.fsencode(argument)
    return Buffer(argument + b"\0") if isinstance(argument, bytes) else argument
