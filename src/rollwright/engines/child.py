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
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
MAX_LINE_BYTES = 16 * 1024


class WholeLines:
    """Bytes as they come, given out as lines. What has no end yet is kept; a line longer than MAX_LINE_BYTES is given
    out in pieces of that size."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        pieces = [piece for line in whole for piece in _cut(line)]
        *full, self._rest = _cut(self._rest)
        return pieces + full

    def rest(self) -> list[bytes]:
        """What has no end, because nothing more comes."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


def _cut(line: bytes) -> list[bytes]:
    return [line[start : start + MAX_LINE_BYTES] for start in range(0, max(len(line), 1), MAX_LINE_BYTES)]


class Child:
    """A running child, or the memory of one. Its stdin and stderr are pipes."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        name: str,
        *,
        log_lines: int,
        heard: Callable[[str], None] | None = None,
    ) -> None:
        """`heard` is told what the child says when it says it, one or more whole lines at a time. Nobody wants that of
        one that chatters, as the servers of models do: its newest lines are kept for its obituary alone."""
        self._process = process
        self._name = name
        self._heard = heard
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
        lines = WholeLines()
        while chunk := await self._process.stderr.read(65536):
            self._take(lines.feed(chunk))
        self._take(lines.rest())

    def _take(self, lines: list[bytes]) -> None:
        said = [line.decode("utf-8", "replace") for line in lines]
        self._log.extend(said)
        if said and self._heard is not None:
            self._heard("\n".join(said))


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
