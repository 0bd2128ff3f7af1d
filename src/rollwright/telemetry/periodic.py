"""A daemon thread that does one small job at a steady pace, and stops when asked."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable


class PeriodicThread:
    """Calls `work(late_s)` every `period_s`; `late_s` says by how much this thread itself was held up.

    The job never overlaps with itself. A job that runs over its period loses the missed turns, it does not catch up.
    `at_end` is the thread's last act: what it does happens even if nobody waits for the end.
    """

    def __init__(
        self, name: str, period_s: float, work: Callable[[float], None], at_end: Callable[[], None] = lambda: None
    ) -> None:
        self._period_s = period_s
        self._work = work
        self._at_end = at_end
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic() + self._period_s
        while not self._stop.wait(max(due - time.monotonic(), 0.0)):
            late_s = max(time.monotonic() - due, 0.0)
            self._work(late_s)
            due = max(due + self._period_s, time.monotonic())
        self._at_end()

    def ask_to_stop(self) -> None:
        """Does not wait."""
        self._stop.set()

    def close(self, within_s: float = 5.0) -> bool:
        """Ask it to stop and wait; False when it is stuck in its job, and then left behind as a daemon."""
        self.ask_to_stop()
        if self._thread.ident is not None:
            self._thread.join(within_s)
        return not self._thread.is_alive()

    async def aclose(self, within_s: float = 5.0) -> bool:
        """The same, from a loop. It is asked at once, because a cancelled to_thread may never have begun."""
        self.ask_to_stop()
        return await asyncio.to_thread(self.close, within_s)
