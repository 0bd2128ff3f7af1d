"""Workers as processes of this machine. They die with the process that started them, however it dies."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import msgspec

from .launching import Exit, WorkerOrder

ORDER = "ROLLWRIGHT_WORKER_ORDER"
LAST_WORDS_BYTES = 4000
KILL_WAIT_S = 10.0


class _Running:
    """A process and the end of what it said."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._words = b""
        self._cpu_ticks = 0
        assert process.stderr is not None
        self._pipe = process.stderr.fileno()
        os.set_blocking(self._pipe, False)

    def listen(self) -> None:
        """Take what it said since, pass it on, keep the end. A full pipe would hold the worker, so this runs often."""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._pipe, 65536):
                self._words = (self._words + chunk)[-LAST_WORDS_BYTES:]
                with contextlib.suppress(OSError):
                    os.write(2, chunk)

    def computing(self) -> bool:
        """Whether it used a CPU since this was asked last."""
        try:
            with open(f"/proc/{self.process.pid}/stat", "rb") as stat:
                fields = stat.read().rpartition(b")")[2].split()
        except OSError:
            return False
        before, self._cpu_ticks = self._cpu_ticks, int(fields[11]) + int(fields[12])
        return fields[0] not in (b"T", b"t", b"Z", b"X") and self._cpu_ticks > before

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def bury(self) -> str:
        self.process.wait(timeout=KILL_WAIT_S)
        self.listen()
        assert self.process.stderr is not None
        self.process.stderr.close()
        words = self._words.decode("utf-8", "replace").strip()
        return _how(self.process.returncode) + (f", saying:\n{words}" if words else "")


class LocalLauncher:
    """Must be used from the main thread of its process: the kernel ends a child when the thread that made it ends."""

    def __init__(self) -> None:
        self._running: dict[tuple[int, int], _Running] = {}

    def room(self, wanted: int) -> int:
        return sys.maxsize

    def start(self, order: WorkerOrder) -> None:
        # The order holds the token, so it goes by the environment: argv can be read by everyone on the machine.
        process = subprocess.Popen(
            [sys.executable, "-m", "rollwright.serve.worker", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, ORDER: msgspec.json.encode(order).decode()},
            start_new_session=True,
        )
        self._running[order.slot, order.life] = _Running(process)

    def kill(self, slot: int, life: int) -> None:
        if (slot, life) in self._running:
            self._running[slot, life].kill()

    def computing(self, slot: int, life: int) -> bool:
        running = self._running.get((slot, life))
        return running is not None and running.computing()

    def exits(self) -> list[Exit]:
        for running in self._running.values():
            running.listen()
        ended = [key for key, running in self._running.items() if running.process.poll() is not None]
        return [self._bury(key) for key in ended]

    def close(self) -> None:
        for running in self._running.values():
            running.kill()
        for key in list(self._running):
            self._bury(key)

    def _bury(self, key: tuple[int, int]) -> Exit:
        running = self._running.pop(key)
        running.kill()  # What it left behind in its process group goes with it.
        return Exit(*key, running.bury())


def _how(code: int) -> str:
    if code >= 0:
        return f"it exited with {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"
