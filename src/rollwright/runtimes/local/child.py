"""One program as a child of this process: spawned with vfork, in a session of its own, its end told by the loop.

Not covered here: descendants that leave the session (see census.py), and what the program reads and writes (pipes.py).
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from rollwright.wire import RuntimeFault

from .confine import Confinement

_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything a program starts with. Secrets travel in `env`, never in `argv`."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    confinement: Confinement | None = None
    """Restrictions beyond the user's own. The program must then begin with a shell that waits at the gate."""


class Child:
    """The leader of a session. It stays unreaped until `reap`, so that its id, and its group's, cannot be reused."""

    def __init__(self, launch: Launch, stdin: int, stdout: int, stderr: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[None] = self._loop.create_future()
        self._pidfd = -1
        self._popen = _spawn(launch, stdin, stdout, stderr)
        self.pid = self._popen.pid
        try:
            self._watch()
        except OSError as error:
            self.kill_group()
            self._popen.wait()
            raise RuntimeFault(f"could not watch {launch.argv[0]!r}: {error}") from error

    def kill_group(self) -> None:
        """End the program and all that stayed in its group. The kernel does this atomically: no fork slips through."""
        if self._popen.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """The exit status of an ended program; minus the signal's number where a signal ended it."""
        return self._popen.wait()

    def release(self) -> None:
        """Reap the program now, or when it ends."""
        if self.exited.done():
            self.reap()
        else:
            self.exited.add_done_callback(lambda _: self.reap())

    def _watch(self) -> None:
        if hasattr(os, "pidfd_open"):
            self._pidfd = os.pidfd_open(self.pid)
            self._loop.add_reader(self._pidfd, self._on_exit)
        else:
            self._poll()

    def _on_exit(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if not self.exited.done():
            self.exited.set_result(None)

    def _poll(self) -> None:
        # Kernels without pidfd: look without reaping, a hundred times a second.
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            self._loop.call_later(_POLL_S, self._poll)
        else:
            self._on_exit()


def _spawn(launch: Launch, stdin: int, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
    def spawn() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            list(launch.argv),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=launch.cwd,
            env=dict(launch.env),
            start_new_session=True,
        )

    try:
        return spawn() if launch.confinement is None else launch.confinement.call(spawn)
    except (OSError, ValueError) as error:
        raise RuntimeFault(f"could not start a program in {launch.cwd!r}: {error}") from error


_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()


@asynccontextmanager
async def spawn_turn() -> AsyncIterator[None]:
    """The right to spawn in this round of the loop.

    A spawn holds the GIL for about half a millisecond, in a thread just as well; 256 of them in one round would stall
    the loop for as long as all together. One per round lets everything else run in between.
    """
    lock = _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    async with lock:
        await asyncio.sleep(0)
        yield
