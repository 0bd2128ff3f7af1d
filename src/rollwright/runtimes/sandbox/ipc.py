"""The objects of IPC that a box has, seen by descriptors that were opened inside of its namespace and handed out.

Nothing is entered for a look. They outlive the processes that made them, so a reset has to remove them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

_SEEN = 65536


class Ipc:
    """`tables` are those of System V, in the order of `names`; `queues` is a mount of the message queues of POSIX, or
    -1 where nobody can make one. The descriptors are closed with it."""

    def __init__(self, names: Sequence[str] = (), tables: Sequence[int] = (), queues: int = -1) -> None:
        self._tables = dict(zip(map(os.path.basename, names), tables, strict=True))
        self._queues = queues

    def objects(self) -> tuple[str, ...]:
        """A name for each object; of very many, the first."""
        return (*self._system_v(), *(f"queue {name}" for name in self._queue_names()))

    def unlink_queues(self) -> None:
        """Remove the message queues of POSIX. Those of System V are removed inside of the box."""
        for name in self._queue_names():
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._queues)

    def close(self) -> None:
        for fd in (*self._tables.values(), self._queues):
            if fd >= 0:
                os.close(fd)
        self._tables, self._queues = {}, -1

    def _system_v(self) -> Iterator[str]:
        for kind, table in self._tables.items():
            for line in os.pread(table, _SEEN, 0).decode("ascii", "replace").splitlines()[1:]:
                key, number, *_ = line.split()
                yield f"{kind} {number} with key {key}"

    def _queue_names(self) -> list[str]:
        if self._queues < 0:
            return []
        place = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._queues)
        try:
            return sorted(os.listdir(place))
        finally:
            os.close(place)
