"""The worker's sign of life: a thread that does nothing else, on a socket of its own.

It says how long ago the loop turned, and once the loop is late, where it stands. So whoever listens can tell three
things apart: alive and well, alive but stalled, and dead.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from .protocol import Beat, pack
from .wiring import Address, connected

BEAT_S = 0.2
LATE_S = 0.3
"""From here on a beat tells where the loop stands."""
MAX_STACK_CHARS = 8000


class Pulse:
    """Started and closed on the loop that it tells of."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: Address,
        slot: int,
        life: int,
        vitals: Callable[[], dict[str, float]],
        limit_s: float = 0.0,
    ) -> None:
        """A loop that stands still for `limit_s` ends the process, where nobody else could; 0 is never."""
        self._limit_s = limit_s
        self._socket = connected(context, address.pulse, address, push=True)
        self._token, self._slot, self._life = address.token, slot, life
        self._vitals = vitals
        self._turned = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="rollwright-pulse", daemon=True)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._ident = threading.get_ident()
        self._turn()
        self._thread.start()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._stop.set()
        self._thread.join(timeout=5 * BEAT_S)

    def _turn(self) -> None:
        self._turned = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(BEAT_S / 2, self._turn)

    def _beat(self) -> None:
        try:
            while not self._stop.wait(BEAT_S):
                age_s = time.monotonic() - self._turned
                stack = self._where() if age_s > LATE_S else ""
                if 0.0 < self._limit_s < age_s:
                    os.write(2, f"the loop stood still for {age_s:.0f} s at:\n{stack}\n".encode())
                    os._exit(1)
                beat = Beat(self._token, self._slot, self._life, age_s, stack)
                self._socket.send_multipart([pack(beat), msgspec.json.encode(self._vitals())], zmq.NOBLOCK)
        finally:
            self._socket.close(linger=0)

    def _where(self) -> str:
        frame = sys._current_frames().get(self._ident)
        if frame is None:
            return ""
        # Places only: the source is not read from disk while the loop hangs.
        places = [
            f"{place.f_code.co_filename}:{line} in {place.f_code.co_qualname}"
            for place, line in traceback.walk_stack(frame)
        ]
        return "\n".join(reversed(places))[-MAX_STACK_CHARS:]


def own_vitals() -> dict[str, float]:
    """What the kernel knows of this process; empty where it does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {
            "pid": float(os.getpid()),
            "rss_mb": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            "descriptors": float(len(os.listdir("/proc/self/fd"))),
            "cpu_s": time.process_time(),
        }
    except OSError:
        return {}
