"""Workers as processes of this machine. They die with the process that started them, however it dies.

Most of a worker's start is imports. So when all is calm one more process is started that has done them and waits for an
order: a worker that dies is replaced by it in the time that its host takes to open.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable

import msgspec

from rollwright.engines.child import WholeLines

from .launching import Exit, WorkerOrder
from .voice import Voice

LAST_WORDS_BYTES = 4000
KILL_WAIT_S = 10.0
CALM_S = 2.0
"""So long after every worker has heard its order, a process is started that waits for one."""


class _Running:
    """A process, what it is still to be told, and the end of what it said."""

    def __init__(self, process: subprocess.Popen[bytes], voice: Voice) -> None:
        self.process = process
        self._voice = voice
        self._name = "spare worker"
        self._lines = WholeLines()
        self._untold = b""
        self._words = b""
        self._cpu_ticks = 0
        assert process.stderr is not None
        assert process.stdin is not None
        self._pipe, self._order = process.stderr.fileno(), process.stdin.fileno()
        os.set_blocking(self._pipe, False)
        os.set_blocking(self._order, False)

    def tell(self, order: WorkerOrder) -> None:
        self._name = f"worker {order.slot}.{order.life}"
        self._untold = msgspec.json.encode(order) + b"\n"
        self.speak()

    def speak(self) -> None:
        """Say what fits into the pipe: a long order is heard when the worker has begun to read."""
        while self._untold:
            try:
                self._untold = self._untold[os.write(self._order, self._untold) :]
            except BlockingIOError:
                return
            except OSError:  # It is dead, which its exit tells.
                self._untold = b""

    def heard(self) -> bool:
        """Whether it has done its imports and read its order."""
        unread = array.array("i", [0])
        fcntl.ioctl(self._order, termios.FIONREAD, unread)
        return not self._untold and not unread[0]

    def listen(self) -> None:
        """Take what it said since, pass on its whole lines, keep the end. A full pipe would hold the worker, so this
        runs often."""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._pipe, 65536):
                self._words = (self._words + chunk)[-LAST_WORDS_BYTES:]
                self._say(self._lines.feed(chunk))

    def _say(self, lines: list[bytes]) -> None:
        """Under its name, line by line: a traceback among those of its neighbours, or what some library prints, is
        nobody's otherwise."""
        name = self._name.encode()
        self._voice.say([name + b": " + line for line in lines])

    def computing(self) -> bool:
        """Whether it used a CPU since this was asked last."""
        fields = _stat(self.process.pid)
        if not _is_moving(fields):
            return False
        before, self._cpu_ticks = self._cpu_ticks, int(fields[11]) + int(fields[12])
        return self._cpu_ticks > before

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def bury(self) -> str:
        self.process.wait(timeout=KILL_WAIT_S)
        self.listen()
        self._say(self._lines.rest())
        assert self.process.stderr is not None
        assert self.process.stdin is not None
        self.process.stderr.close()
        self.process.stdin.close()
        words = self._words.decode("utf-8", "replace").strip()
        return _how(self.process.returncode) + (f", saying:\n{words}" if words else "")


class LocalLauncher:
    """Must be used from the main thread of its process: the kernel ends a child when the thread that made it ends."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, voice: Voice | None = None) -> None:
        """What the workers say goes to `voice`, or to stderr."""
        self._clock = clock
        self._voice = voice or Voice()
        self._running: dict[tuple[int, int], _Running] = {}
        self._spare: _Running | None = None
        self._host = ""
        self._calm_at = clock() + CALM_S

    def __repr__(self) -> str:
        return f"<LocalLauncher {len(self._running)} running, {int(self._spare is not None)} spare>"

    def room(self, wanted: int) -> int:
        return sys.maxsize

    def start(self, order: WorkerOrder) -> None:
        worker, self._spare = self._spare, None
        if worker is not None and not moves(worker.process.pid):
            _end(worker)
            worker = None
        self._running[order.slot, order.life] = worker = worker or _spawned(order.host, self._voice)
        self._host = order.host
        worker.tell(order)

    def kill(self, slot: int, life: int) -> None:
        if (slot, life) in self._running:
            self._running[slot, life].kill()

    def computing(self, slot: int, life: int) -> bool:
        running = self._running.get((slot, life))
        return running is not None and running.computing()

    def exits(self) -> list[Exit]:
        for running in self._running.values():
            running.listen()
            running.speak()
        self._voice.flush()
        self._keep_spare()
        ended = [key for key, running in self._running.items() if running.process.poll() is not None]
        return [self._bury(key) for key in ended]

    def _keep_spare(self) -> None:
        now = self._clock()
        if self._spare is not None:
            self._spare.listen()
        elif not self._running or not all(running.heard() for running in self._running.values()):
            self._calm_at = now + CALM_S
        elif now >= self._calm_at:
            self._spare = _spawned(self._host, self._voice)

    def close(self) -> None:
        if self._spare is not None:
            _end(self._spare)
            self._spare = None
        for running in self._running.values():
            running.kill()
        for key in list(self._running):
            self._bury(key)

    def _bury(self, key: tuple[int, int]) -> Exit:
        running = self._running.pop(key)
        running.kill()  # What it left behind in its process group goes with it.
        return Exit(*key, running.bury())


def _spawned(host: str, voice: Voice) -> _Running:
    """A worker that waits for its order, and imports meanwhile what it will serve, which is no secret. The order holds
    the token, so it goes by a pipe: argv can be read by everyone on the machine, and an environment is inherited."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rollwright.serve.worker", str(os.getpid()), host],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    return _Running(process, voice)


def moves(pid: int) -> bool:
    """Whether a process is neither stopped nor dead."""
    return _is_moving(_stat(pid))


def is_gone(pid: int) -> bool:
    """Whether a process of this machine has ended, also where nobody has heard its end yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return _stat(pid)[:1] in ([b"Z"], [b"X"])


def _is_moving(stat: list[bytes]) -> bool:
    return bool(stat) and stat[0] not in (b"T", b"t", b"Z", b"X")


def _stat(pid: int) -> list[bytes]:
    """What the kernel says of a process from its state on; nothing if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _end(running: _Running) -> None:
    running.kill()
    running.bury()


def _how(code: int) -> str:
    if code >= 0:
        return f"it exited with {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"
