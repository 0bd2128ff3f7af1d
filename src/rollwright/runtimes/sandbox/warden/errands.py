"""Short work inside of a box that is there: begun, heard of, and its processes reaped."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from .furnish import DONE, LEFT
from .kernel import owner_of
from .loop import Loop, hear
from .runner import BASE, Work


class Told:
    """What came of an errand."""

    def __init__(self, word: bytes = b"", fds: Sequence[int] = (), error: str = "") -> None:
        self.word = word
        self.fds = fds
        """To be closed by whoever hears of them."""
        self.error = error


class Errand:
    """Work that is being done as the master of the mounts of a box, whose first process is `first` (its id and a
    handle). `then` hears once what came of it. OSError where it cannot be begun."""

    def __init__(self, loop: Loop, first: tuple[int, int], work: Work, then: Callable[[Told], None]) -> None:
        pid, handle = first
        with _master_of(pid) as master:
            self._session, self._link = work.begin((master, handle))
        self._loop = loop
        self._work = work
        self._then = then
        loop.watch(self._link.fileno(), self._on_told)

    def go_on(self) -> None:
        """Give it the word that it waits for. One that is dead is heard of otherwise."""
        if self._link.fileno() >= 0:
            with suppress(OSError):
                self._link.send(b"go", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def drop(self) -> None:
        """End it, and hear nothing of it any more."""
        if self._link.fileno() >= 0:
            self._loop.forget(self._link.fileno())
            self._link.close()
            bury(self._session)

    def _on_told(self) -> None:
        heard = hear(self._link)
        self.drop()
        if heard is None:
            self._then(Told(error="the errand died"))
        elif heard.word in (DONE, LEFT):
            self._then(Told(heard.word, heard.fds))
        else:
            self._then(Told(error=str(self._work.steps.why(heard.word, BASE))))


def enter(loop: Loop, first: tuple[int, int], work: Work, then: Callable[[Told], None]) -> None:
    """Have `work` done that waits for nothing; `then` also hears why it could not be begun."""
    try:
        Errand(loop, first, work, then)
    except OSError as error:
        then(Told(error=str(error)))


def bury(session: int) -> None:
    """End a runner with the child that it goes on in, and reap both."""
    with suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-session, 0)


@contextmanager
def _master_of(pid: int) -> Iterator[int]:
    """The user namespace that the mounts of `pid` belong to."""
    mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        master = owner_of(mounts)
    finally:
        os.close(mounts)
    try:
        yield master
    finally:
        os.close(master)
