"""Large frames in memory that two processes share, instead of going through two sockets.

A worker has a shelf: anonymous memory of a fixed size. It lays large frames there and sends word of the place; the
client copies them off and says so in the shelf itself. A socket copies a byte four times on its way through the broker,
each time in the kernel and in small pieces; the shelf copies it twice, at the speed of memory.

The memory has no name in any file system: clients open it by way of the worker's entry in /proc, and it lives as long
as somebody maps it. So nothing is left behind however anybody dies, and what a dead worker had laid can still be taken
by whoever has looked there before. Only processes of one user who see each other's processes can do this, which their
`place` tells; and where it fails all the same, frames go over the sockets.

Copying happens in threads: it lets go of the interpreter, and memory that is used for the first time is slow.

The first page holds the shelf's name and a word per entry: its number as long as it lies there, 0 once it was taken.
Whoever copies looks at the word before and after, so nothing that was cleared away meanwhile is taken for a result.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rollwright.wire import RollwrightError, WireError
from rollwright.wire.codec import Buffer

from .protocol import Laid

SHELF_BYTES = 256 * 2**20
"""Of one worker. Memory is used as far as frames lie there at once."""
LEAST_BYTES = 2**20
"""A frame that is smaller goes over the sockets, which costs less than a millisecond."""
MOST_BYTES = 128 * 2**20
"""Of one message. What is larger goes over the sockets."""
FORGOTTEN_S = 180.0
"""What nobody has taken for so long is cleared away: its client was given up long before."""
UNUSED_S = 10.0
"""So long a client keeps a shelf open that it takes nothing from."""
MAX_ENTRIES = 500
_PAGE_BYTES = 4096
_ALIGN = 64
_PUNCH_HOLE = 0x02 | 0x01

Bytes = npt.NDArray[np.uint8]


class ShelfLost(RollwrightError):
    """What was laid there cannot be had."""


def place() -> str:
    """Names what two processes must share to use a shelf together; empty where there are none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot:
            machine = boot.read().strip()
        return f"{machine} {os.readlink('/proc/self/ns/pid')} {os.geteuid()}" if hasattr(os, "memfd_create") else ""
    except OSError:
        return ""


@dataclass(slots=True)
class _Entry:
    begin: int
    end: int
    number: int
    laid_at: float


class Shelf:
    """The worker's side. OSError where the system has no such memory to give."""

    def __init__(self, size: int = SHELF_BYTES) -> None:
        self._fd = os.memfd_create("rollwright-shelf", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, _PAGE_BYTES + size)
        # Whoever maps it need not fear that it shrinks under them.
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.size = size
        self._words, self._bytes = _views(mmap.mmap(self._fd, _PAGE_BYTES + size))
        self._name = secrets.randbits(63)
        self._words[0] = self._name
        self._entries: dict[int, _Entry] = {}
        self._number = 0
        self._used = False
        self._giving_back = False

    def __repr__(self) -> str:
        return f"<Shelf {len(self._entries)} entries, {self.held_bytes} of {self.size} bytes>"

    @property
    def held_bytes(self) -> int:
        """What lies there, as far as was seen."""
        return sum(entry.end - entry.begin for entry in list(self._entries.values()))

    @property
    def resident_mb(self) -> float:
        """The memory that it has now; what was used stays until it is given back."""
        return os.fstat(self._fd).st_blocks * 512 / 2**20 if self._fd >= 0 else 0.0

    @property
    def empty(self) -> bool:
        return not self._entries

    def reserve(self, frames: Sequence[Buffer], now: float) -> Laid | None:
        """A place for the large ones of the frames. None if none is large or there is no room."""
        large = tuple((index, len(frame)) for index, frame in enumerate(frames) if len(frame) >= LEAST_BYTES)
        size = sum(_aligned(length) for _, length in large)
        if not large or size > MOST_BYTES or self._giving_back:
            return None
        self.sweep(now)
        begin, word = self._room_for(size), self._free_word()
        if begin is None or word is None:
            return None
        self._number += 1
        self._entries[word] = _Entry(begin, begin + size, self._number, now)
        self._words[word] = self._number
        self._used = True
        return Laid(os.getpid(), self._fd, self._name, word, self._number, begin, large)

    def lay(self, laid: Laid, frames: Sequence[Buffer]) -> list[Buffer]:
        """Copy them to their place, in whatever thread. Returns the frames with nothing in the place of those."""
        left, at = list(frames), laid.begin
        for index, length in laid.frames:
            self._bytes[at : at + length] = np.frombuffer(frames[index], np.uint8)
            left[index] = b""
            at += _aligned(length)
        return left

    def sweep(self, now: float) -> None:
        """Clear away what was taken, and what nobody takes."""
        for word, entry in list(self._entries.items()):
            if self._words[word] != entry.number or now - entry.laid_at > FORGOTTEN_S:
                self._words[word] = 0
                del self._entries[word]

    def give_back(self) -> None:
        """Let the system have the memory while nothing lies there. Takes a while: call it in a thread, and lay nothing
        meanwhile."""
        fallocate = ctypes.CDLL(None).fallocate
        fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        fallocate(self._fd, _PUNCH_HOLE, _PAGE_BYTES, self.size)

    def may_give_back(self, now: float) -> bool:
        """Whether there is something to give back now; if so nothing is laid until `gave_back`."""
        if self._giving_back:
            return False
        self.sweep(now)
        self._giving_back = self._used and self.empty
        return self._giving_back

    def gave_back(self) -> None:
        self._used = self._giving_back = False

    def close(self) -> None:
        """Clients that look there keep what they see."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _room_for(self, size: int) -> int | None:
        """The lowest place: pages that were used before cost nothing."""
        begin = 0
        for entry in sorted(self._entries.values(), key=lambda entry: entry.begin):
            if entry.begin - begin >= size:
                break
            begin = entry.end
        return begin if begin + size <= self.size else None

    def _free_word(self) -> int | None:
        return next((word for word in range(1, MAX_ENTRIES + 1) if word not in self._entries), None)


@dataclass(slots=True)
class _Opened:
    words: npt.NDArray[np.uint64]
    bytes: Bytes
    used_at: float


class Shelves:
    """The client's side: the shelves that it has looked into. All of it runs in one thread, except `leave`."""

    def __init__(self) -> None:
        self._opened: dict[int, _Opened] = {}

    def __len__(self) -> int:
        return len(self._opened)

    def take(self, laid: Laid, frames: Sequence[Buffer], now: float) -> list[Buffer]:
        """The frames with what was laid in its place, copied. ShelfLost if it is not there."""
        opened = self._opened.get(laid.name)
        if opened is None:
            opened = self._opened[laid.name] = _look(laid, now)
        _check(laid, frames, len(opened.bytes))
        opened.used_at = now
        if opened.words[laid.entry] != laid.number:
            raise ShelfLost("what was laid there was cleared away")
        taken, at = list(frames), laid.begin
        for index, length in laid.frames:
            copy = opened.bytes[at : at + length].copy()
            copy.flags.writeable = False
            taken[index] = copy.data
            at += _aligned(length)
        if opened.words[laid.entry] != laid.number:
            raise ShelfLost("what was laid there was cleared away")
        opened.words[laid.entry] = 0
        return taken

    def leave(self, laid: Laid) -> None:
        """Nobody wants what lies there. A shelf that was never looked into is left alone: its worker clears it."""
        opened = self._opened.get(laid.name)
        if opened is not None and 1 <= laid.entry <= MAX_ENTRIES and opened.words[laid.entry] == laid.number:
            opened.words[laid.entry] = 0

    def leave_all(self) -> None:
        self._opened.clear()

    def leave_unused(self, now: float) -> None:
        """Close those that nothing was taken from lately. That frees the memory of a dead worker and takes a while."""
        for name in [name for name, opened in self._opened.items() if now - opened.used_at > UNUSED_S]:
            del self._opened[name]


def _look(laid: Laid, now: float) -> _Opened:
    try:
        fd = os.open(f"/proc/{laid.pid}/fd/{laid.fd}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise ShelfLost(f"the shelf of process {laid.pid} cannot be opened: {error}") from error
    try:
        told = os.fstat(fd)
        if not stat.S_ISREG(told.st_mode) or told.st_size <= _PAGE_BYTES:
            raise ShelfLost(f"process {laid.pid} has no shelf there")
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ShelfLost(f"the memory of process {laid.pid} could shrink under us")
        opened = _Opened(*_views(mmap.mmap(fd, told.st_size)), now)
    except (OSError, ValueError) as error:
        raise ShelfLost(f"the shelf of process {laid.pid} cannot be mapped: {error}") from error
    finally:
        os.close(fd)
    if opened.words[0] != laid.name:
        raise ShelfLost(f"process {laid.pid} has another shelf there")
    return opened


def _check(laid: Laid, frames: Sequence[Buffer], size: int) -> None:
    """What a peer says is looked at before it is used."""
    sizes = [length for _, length in laid.frames]
    if any(length < 0 for length in sizes) or not 0 <= laid.begin <= size - sum(map(_aligned, sizes)):
        raise WireError(f"a shelf of {size} bytes does not hold what is said to lie at {laid.begin}")
    if not 1 <= laid.entry <= MAX_ENTRIES or any(not 0 <= index < len(frames) for index, _ in laid.frames):
        raise WireError("what is said to lie on a shelf has no place in its message")


def _views(mapped: mmap.mmap) -> tuple[npt.NDArray[np.uint64], Bytes]:
    words = np.frombuffer(mapped, np.uint64, _PAGE_BYTES // 8)
    return words, np.frombuffer(mapped, np.uint8, offset=_PAGE_BYTES)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
