"""What a program of a box on this machine may not do although its user may: write elsewhere, look into other processes.

Both are set on a thread that starts the program and ends before the program's first own instruction. The thread must be
gone by then: it shares this process's memory and the program's restrictions, so /proc would show the one to the other.
Hence the gate: the shell that sets the limits (limits.py) waits for a line on its standard input before it becomes the
program, and the line is written when the thread is gone.

Each program gets restrictions of its own. Programs of one box may signal one another and share files; only those that
one of them started can be looked into through /proc or traced by it.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from rollwright.wire import RuntimeFault

from . import landlock

T = TypeVar("T")

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts")
"""What every program may write to."""
GATE = b"\n"

_DROP_FROM_BOUND = 24
LOOKING = (19, 21, 38)
"""CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON: with any of them root looks into every process."""
_PATIENCE_S = 10.0


class Confinement:
    """The restrictions of one box. `writable` is empty where writes are not confined."""

    def __init__(self, writable: Sequence[str] = ()) -> None:
        self.writable = tuple(writable)
        self._ruleset = -1
        if self.writable and landlock.available():
            self._ruleset = landlock.make_ruleset(self.writable)

    @property
    def confines_writes(self) -> bool:
        return self._ruleset >= 0

    @property
    def ruleset(self) -> int:
        """The descriptor of its rules for writes; -1 where there are none."""
        return self._ruleset

    def close(self) -> None:
        ruleset, self._ruleset = self._ruleset, -1
        if ruleset >= 0:
            os.close(ruleset)

    def call(self, work: Callable[[], T]) -> T:
        """Do `work`, which starts a program, on a thread with these restrictions, and see the end of that thread.

        This blocks for as long as the work does. A spawn holds the GIL anyway, so awaiting it would not free the loop.
        """
        answers: list[T] = []
        errors: list[Exception] = []
        done = _thread.allocate_lock()
        tid = 0

        def run() -> None:
            nonlocal tid
            tid = threading.get_native_id()
            try:
                self._enter()
                answers.append(work())
            except Exception as error:  # The border of a thread: it goes on in the one that waits.
                errors.append(error)
            finally:
                done.release()

        done.acquire()
        # `threading.Thread` takes twice as long, for services that nobody asks for here.
        _thread.start_new_thread(run, ())
        done.acquire()
        _see_end(tid)
        if errors:
            raise errors[0]
        return answers[0]

    def _enter(self) -> None:
        if os.geteuid() == 0:
            libc = ctypes.CDLL(None)
            for capability in LOOKING:
                # Refused where this process may not drop it; then it rarely has it.
                libc.prctl(_DROP_FROM_BOUND, ctypes.c_ulong(capability), 0, 0, 0)
        if self._ruleset >= 0:
            landlock.restrict_thread(self._ruleset)


def _see_end(tid: int) -> None:
    """A thread that gave its answer ends within microseconds; its entry in /proc goes last."""
    deadline = time.monotonic() + _PATIENCE_S
    while os.path.exists(f"/proc/self/task/{tid}"):
        if time.monotonic() > deadline:
            raise RuntimeFault("the thread that started a program does not end")
        os.sched_yield()
