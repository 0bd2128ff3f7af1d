"""The worker's sign of life: a thread that does nothing else, on a socket of its own.

It says how long ago the loop turned, and once the loop is late, where it stands. So whoever listens can tell three
things apart: alive and well, alive but stalled, and dead.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import zmq

from rollwright.telemetry.lag import LagSnapshot
from rollwright.wire import WireError
from rollwright.wire.codec import Buffer

from .protocol import Beat, pack, unpack
from .wiring import Address, connected

log = logging.getLogger("rollwright.serve.worker")

BEAT_S = 0.2
LATE_S = 0.3
"""From here on a beat tells where the loop stands."""
MAX_STACK_CHARS = 8000
LEAST_LAG_S, MOST_LAG_S = 2.0**-10, 2.0**5
"""The range of the histogram that is told."""


class Pulse:
    """Started and closed on the loop that it tells of."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: Address,
        slot: int,
        life: int,
        vitals: Callable[[], dict[str, float]],
        begun: Callable[[], int],
        limit_s: float = 0.0,
    ) -> None:
        """A loop that stands still for `limit_s` ends the process, where nobody else could; 0 is never."""
        self._limit_s = limit_s
        self._socket = connected(context, address.pulse, address, push=True)
        self._token, self._slot, self._life = address.token, slot, life
        self._vitals, self._begun = vitals, begun
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
                beat = Beat(self._token, self._slot, self._life, age_s, stack, self._begun())
                self._socket.send_multipart([pack(beat), msgspec.json.encode(self._told())], zmq.NOBLOCK)
        finally:
            self._socket.close(linger=0)

    def _told(self) -> dict[str, float]:
        try:
            return self._vitals()
        except Exception as error:  # The border to the host: its numbers are not worth the worker's life.
            log.warning("the vitals could not be told: %s: %s", type(error).__name__, error)
            return own_vitals()

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


def read_beat(frames: Sequence[Buffer]) -> tuple[Beat, dict[str, float]]:
    """A beat and the vitals behind it, if there are any."""
    beat: Beat = unpack(frames[0], Beat)
    try:
        return beat, msgspec.json.decode(frames[1], type=dict[str, float]) if len(frames) > 1 else {}
    except msgspec.DecodeError as error:
        raise WireError(f"not the vitals of a worker: {error}") from error


def lag_vitals(lag: LagSnapshot) -> dict[str, float]:
    """How late a loop was since its start: quantiles, and how many ticks were no later than each power of two."""
    told = {"lag_p50_ms": lag.p50_s * 1000, "lag_p99_ms": lag.p99_s * 1000, "lag_max_ms": lag.max_s * 1000}
    shown = [(bound, count) for bound, count in lag.octaves if LEAST_LAG_S <= bound <= MOST_LAG_S]
    return told | {"lag_ticks": float(lag.ticks)} | {f"lag_le_{bound * 1000:.4g}_ms": float(n) for bound, n in shown}


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
