"""Workers on a Ray cluster, as the broker sees them: notes to a driver process, and what it said since. Never waits."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec

from rollwright.serve.launching import Exit, WorkerOrder
from rollwright.serve.slots import SlotsSpent
from rollwright.wire import UsageError

from .lines import Ended, FromDriver, Kill, Lines, Said, Spent, Start, State, Want, line
from .settings import RaySettings

ORDER = "ROLLWRIGHT_RAY_ORDER"
START_TIMEOUT_S = 60.0
"""From the start of the driver to its first word; it imports Ray and finds the cluster meanwhile."""
SILENCE_S = 20.0
"""A driver that says nothing for so long hangs, and the cluster with it."""
FRESH_S = 1.0
MAX_UNSENT_BYTES = 64 * 2**20
CLOSE_WAIT_S = 10.0


class RayLauncher:
    """Must be used from the main thread of its process: the kernel ends a child when the thread that made it ends."""

    def __init__(self, settings: RaySettings, clock: Callable[[], float] = time.monotonic) -> None:
        if importlib.util.find_spec("ray") is None:
            raise UsageError("workers on a Ray cluster need ray; run: pip install 'rollwright[ray]'")
        self._clock = clock
        self._driver = subprocess.Popen(
            [sys.executable, "-m", "rollwright.serve.ray.driver", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, ORDER: msgspec.json.encode(settings).decode()},
        )
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        self._pipe = self._driver.stdin.fileno()
        os.set_blocking(self._pipe, False)
        self._lines = Lines(self._driver.stdout.fileno(), FromDriver)
        self._unsent = b""
        self._running: set[tuple[int, int]] = set()
        self._exits: list[Exit] = []
        self._state = State(0, 0)
        self._heard_at = clock() + START_TIMEOUT_S - SILENCE_S
        self._wanted = self._started = 0
        self._spent = ""

    def room(self, wanted: int) -> int:
        if wanted != self._wanted:
            self._wanted = wanted
            self._say(Want(wanted))
        self._listen()
        if self._spent:
            raise SlotsSpent(self._spent)
        # What was started after the driver last counted takes room that it did not know of.
        return max(self._state.room - (self._started - self._state.started), 0)

    def start(self, order: WorkerOrder) -> None:
        self._started += 1
        self._running.add((order.slot, order.life))
        self._say(Start(order))

    def kill(self, slot: int, life: int) -> None:
        if (slot, life) in self._running:
            self._say(Kill(slot, life))

    def computing(self, slot: int, life: int) -> bool:
        self._listen()
        fresh = self._clock() - self._heard_at < FRESH_S
        return fresh and (slot, life) in self._state.computing

    def exits(self) -> list[Exit]:
        self._listen()
        exits, self._exits = self._exits, []
        return exits

    def close(self) -> None:
        """The driver hears that nobody speaks to it any more, and takes its actors along."""
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        with contextlib.suppress(OSError):
            self._driver.stdin.close()
        try:
            self._driver.wait(CLOSE_WAIT_S)
        except subprocess.TimeoutExpired:
            self._driver.kill()
            self._driver.wait(CLOSE_WAIT_S)
        self._driver.stdout.close()

    def _listen(self) -> None:
        self._push()
        said: Ended | State | Spent
        for said in self._lines.read():
            self._heard_at = self._clock()
            if isinstance(said, State):
                self._state = said
            elif isinstance(said, Spent):
                self._spent = said.why
            elif (said.slot, said.life) in self._running:
                self._running.discard((said.slot, said.life))
                self._exits.append(Exit(said.slot, said.life, said.words))
        if self._lines.ended and not self._spent:
            self._spent = "the Ray driver ended, and its workers with it; its last words are above"
        elif self._clock() - self._heard_at > SILENCE_S:
            self._spent = f"the Ray driver has been silent for {SILENCE_S:g} s"

    def _say(self, said: Said) -> None:
        self._unsent += line(said)
        self._push()

    def _push(self) -> None:
        if len(self._unsent) > MAX_UNSENT_BYTES:
            self._spent = "the Ray driver does not read what it is told"
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._unsent:
                self._unsent = self._unsent[os.write(self._pipe, self._unsent) :]
