"""Ctrl+C and SIGTERM. The first press lets running rollouts finish, the second drops them; what is finished stays."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Protocol, Self


class Drainable(Protocol):
    in_flight: int

    def drain(self) -> None: ...
    def drop(self) -> None: ...


class Interrupts:
    """Holds both signals while the block runs. Before `guard`, a signal cancels the task that entered."""

    def __init__(self, say: Callable[[str], None], *, grace_s: float = 20.0) -> None:
        """SIGTERM drops what has not finished after `grace_s`."""
        self.presses = 0
        self._say = say
        self._grace_s = grace_s
        self._work: Drainable | None = None
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def guard(self, work: Drainable) -> None:
        """From now on signals drain and drop `work`."""
        self._work = work

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.pressed)
        loop.add_signal_handler(signal.SIGTERM, self.terminated)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)
        if self._timer is not None:
            self._timer.cancel()

    def pressed(self) -> None:
        self.presses += 1
        work = self._work
        if work is None:
            self._cancel()
        elif self.presses == 1:
            work.drain()
            self._say(f"Finishing {work.in_flight} rollouts. Press Ctrl+C once more to drop them.")
        else:
            self._drop(work)

    def terminated(self) -> None:
        self.presses += 1
        work = self._work
        if work is None:
            self._cancel()
        elif self._timer is None:
            work.drain()
            self._say(f"Finishing {work.in_flight} rollouts for at most {self._grace_s:g} s.")
            self._timer = asyncio.get_running_loop().call_later(self._grace_s, self._drop, work)

    def _drop(self, work: Drainable) -> None:
        if work.in_flight:
            self._say(f"Dropping {work.in_flight} rollouts. What had finished is kept.")
        work.drop()
        # Should closing hang, one more press ends the process the usual way.
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
