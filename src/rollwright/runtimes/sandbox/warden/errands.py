"""Short work inside of a box that is there: begun, heard of, and its processes reaped."""

from __future__ import annotations

import os
import signal
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


def enter(loop: Loop, first: tuple[int, int], work: Work, then: Callable[[Told], None]) -> None:
    """Have `work` done as the master of the mounts of a box, whose first process is `first` (its id and a handle)."""
    pid, handle = first
    try:
        with _master_of(pid) as master:
            session, link = work.begin((master, handle))
    except OSError as error:
        then(Told(error=str(error)))
        return

    def on_told() -> None:
        loop.forget(link.fileno())
        heard = hear(link)
        link.close()
        bury(session)
        if heard is None:
            then(Told(error="the errand died"))
        elif heard.word in (DONE, LEFT):
            then(Told(heard.word, heard.fds))
        else:
            then(Told(error=str(work.steps.why(heard.word, BASE))))

    loop.watch(link.fileno(), on_told)


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
