"""Bytes into files, a turn at a time. Everything here blocks and belongs in a thread.

A kernel that does not preempt itself keeps a CPU until its call is done. One write of the routed experts of a rollout
takes it away for 10 to 40 ms, and two threads that write leave a machine of two cores to nobody, its event loop
included, whatever the priorities are. Between two calls others run; so no call here moves more than a turn.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence

from rollwright.wire.codec import Buffer
from rollwright.wire.mapping import Home

TURN_BYTES = 2**20
"""About a millisecond."""
MOST_BUFFERS = 1024
"""Of one write; the kernel's own limit."""
_NO_COPY = (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSPC)
"""Between some file systems, or on old kernels, the kernel does not copy. A full disk is told by the write."""


def write_at(descriptor: int, offset: int, buffers: Sequence[Buffer]) -> int:
    """Every byte of `buffers`, one after another from `offset` on. Returns where they end. None of them is copied by
    us, and the kernel may take less than it is given."""
    for turn in turns(buffers):
        while turn:
            written = os.pwritev(descriptor, turn, offset)
            offset += written
            turn = _rest(turn, written)
    return offset


def copy_at(descriptor: int, offset: int, home: Home, length: int) -> int:
    """From file to file. Returns how many bytes were copied; the rest is to be written from memory."""
    copied = 0
    try:
        source = os.open(home.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        stat = os.fstat(source)
        while copied < length and (stat.st_dev, stat.st_ino) == home.inode:
            turn = min(length - copied, TURN_BYTES)
            moved = os.copy_file_range(source, descriptor, turn, home.offset + copied, offset + copied)
            if not moved:
                break
            copied += moved
    except OSError as error:
        if error.errno not in _NO_COPY:
            raise
    finally:
        os.close(source)
    return copied


def turns(buffers: Sequence[Buffer]) -> Iterator[list[memoryview]]:
    """The same bytes in the same order, as what one call is given at a time."""
    turn: list[memoryview] = []
    room = TURN_BYTES
    for buffer in buffers:
        view = memoryview(buffer)
        # What is empty cannot be cast, and has nothing to give.
        view = view.cast("B") if view.nbytes else memoryview(b"")
        while view:
            turn.append(view[:room])
            room -= len(turn[-1])
            view = view[len(turn[-1]) :]
            if not room or len(turn) == MOST_BUFFERS:
                yield turn
                turn, room = [], TURN_BYTES
    if turn:
        yield turn


def _rest(turn: list[memoryview], written: int) -> list[memoryview]:
    """What the kernel did not take."""
    for index, view in enumerate(turn):
        if written < len(view):
            return [view[written:], *turn[index + 1 :]]
        written -= len(view)
    return []
