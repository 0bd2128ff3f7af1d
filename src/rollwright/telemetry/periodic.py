"""A daemon thread that does one small job at a steady pace, and stops when asked."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable


class PeriodicThread:
    """Calls `work(late_s)` every `period_s`; `late_s` says by how much this thread itself was held up.

    The job never overlaps with itself. A job that runs over its period loses the missed turns, it does not catch up.
    """

    def __init__(self, name: str, period_s: float, work: Callable[[float], None]) -> None:
        self._period_s = period_s
        self._work = work
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        due = time.monotonic() + self._period_s
        while not self._stop.wait(max(due - time.monotonic(), 0.0)):
            late_s = max(time.monotonic() - due, 0.0)
            self._work(late_s)
            due = max(due + self._period_s, time.monotonic())

    def close(self, within_s: float = 5.0) -> bool:
        """Ask it to stop and wait; False when it is stuck in its job, and then left behind as a daemon."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(within_s)
        return not self._thread.is_alive()

    async def aclose(self, within_s: float = 5.0) -> bool:
        """The same, from a loop. It is told to stop at once, even if the wait is cancelled."""
        self._stop.set()
        return await asyncio.to_thread(self.close, within_s)
