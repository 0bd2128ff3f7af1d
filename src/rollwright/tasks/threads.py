"""The few threads in which plain `def` hooks run, so that user code cannot stall the loop.

Not `concurrent.futures`: its threads are joined when the program ends, so one hook that never returns would keep the
program from ending. These are daemons. A hook whose caller gave up (a deadline, a cancellation) cannot be killed; its
thread is written off and another takes its seat, up to a limit, so that it costs a thread and not the pool.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class _Job:
    __slots__ = ("future", "lost", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.future: Future[Any] = Future()
        self.lost = False
        """Nobody waits for it any more, and its thread no longer counts."""


def _nothing() -> None:
    """What is left of a job once it was run."""


class HookThreads:
    """A bounded number of daemon threads. The queue holds at most one job for each rollout that waits for one."""

    def __init__(self, size: int = 4, max_lost: int = 32, name: str = "rollwright-hook") -> None:
        self.size = size
        self.max_lost = max_lost
        self.name = name
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._free = 0
        self._lost = 0
        self._hops = 0

    def __repr__(self) -> str:
        return f"<HookThreads {self._threads} threads, {self._free} free, {self._lost} lost, {self._hops} hops>"

    @property
    def hops(self) -> int:
        """Jobs handed to a thread so far."""
        return self._hops

    async def run(self, work: Callable[[], T]) -> T:
        """`work()` in a thread, in the caller's context."""
        context = contextvars.copy_context()
        job = _Job(lambda: context.run(work))
        self._hand_over(job)
        try:
            result: T = await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            self._write_off(job)
            raise
        return result

    def _hand_over(self, job: _Job) -> None:
        with self._lock:
            self._hops += 1
            # A free thread is spoken for at once: two jobs never count on the same one.
            if self._free:
                self._free -= 1
            elif self._threads < self.size:
                self._start_thread()
            self._jobs.put(job)

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name=f"{self.name}-{self._hops}", daemon=True).start()

    def _write_off(self, job: _Job) -> None:
        with self._lock:
            if not job.future.running() or job.lost or self._lost >= self.max_lost:
                return
            job.lost = True
            self._lost += 1
            self._threads -= 1
            if not self._jobs.empty():
                self._start_thread()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job.future.set_running_or_notify_cancel():
                self._finish(job)
            if self._leave_or_rest(job):
                return
            del job  # An idle thread does not keep its last answer.

    def _finish(self, job: _Job) -> None:
        # What the work refers to (a whole rollout) is let go before its answer is out, not when the thread comes round.
        work, job.work = job.work, _nothing
        try:
            result = work()
            del work
        except BaseException as error:  # The border of the thread: every error belongs to whoever awaits.
            job.future.set_exception(error)
        else:
            job.future.set_result(result)

    def _leave_or_rest(self, job: _Job) -> bool:
        with self._lock:
            if job.lost:
                self._lost -= 1
                return True
            if self._jobs.empty():
                self._free += 1
            return False


HOOK_THREADS = HookThreads()
