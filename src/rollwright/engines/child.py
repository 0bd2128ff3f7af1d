"""A process that serves a model to the process that started it, and the bond between the two, told from both ends.

The parent holds a `Child`: its newest words, whether it lives, what it died of, and its end. The child calls
`belong_to` first of all, and lives no longer than its parent: stdin stays open as the sign of life, which the child
watches in its own way, and on Linux the kernel is asked to kill it as well. How a child is started and what is said
between the two is its own kind's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections import deque

_PR_SET_PDEATHSIG = 1


class Child:
    """A running child, or the memory of one. Its stdin and stderr are pipes."""

    def __init__(self, process: asyncio.subprocess.Process, name: str, *, log_lines: int) -> None:
        self._process = process
        self._name = name
        self._log: deque[str] = deque(maxlen=log_lines)
        self._listening = asyncio.create_task(self._listen(), name=f"log of {name}, pid {process.pid}")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    @property
    def killed(self) -> bool:
        """Whether a signal ended it, and not itself."""
        return (self._process.returncode or 0) < 0

    @property
    def last_words(self) -> str:
        """The newest lines of its stderr, as half a sentence."""
        said = " | ".join(self._log)
        return f"it said: {said}" if said else "it said nothing"

    def obituary(self) -> str | None:
        """What it died of and its last words; None while it lives."""
        if self.alive:
            return None
        return f"the {self._name} died (exit code {self._process.returncode}); {self.last_words}"

    async def died(self) -> None:
        """Wait until it is dead and all its words were heard. Giving up this wait ends neither."""
        await asyncio.wait({self._listening, asyncio.ensure_future(self._process.wait())})

    async def end(self) -> None:
        """Kill it: it keeps nothing that a kind end would save. The wait is for the kernel only."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
        ending = asyncio.ensure_future(asyncio.gather(self._process.wait(), self._listening, return_exceptions=True))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await ending
            raise

    async def _listen(self) -> None:
        """Keep the pipe empty and the newest lines at hand."""
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(65536):
            self._log.extend(chunk.decode("utf-8", "replace").splitlines())


def belong_to(parent_pid: int) -> None:
    """Make this process the child of `parent_pid` in life and death; 0 is nobody."""
    # A terminal sends Ctrl-C to parent and child alike; the parent decides when its engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not parent_pid or sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have died before the kernel was asked.
    if os.getppid() != parent_pid:
        os._exit(1)
