"""What the kernel says a thread did: CPU used, time spent waiting for a CPU, how often it was run.

Linux tells all three in /proc/self/task/<tid>/schedstat, or the CPU alone in `stat`. Elsewhere the thread's CPU clock
is asked where there is one. What is not known is None; nothing here raises for a platform.
"""

from __future__ import annotations

import contextlib
import os
import time

import msgspec


class ThreadUse(msgspec.Struct, frozen=True):
    """Totals since the thread began."""

    cpu_s: float | None = None
    run_delay_s: float | None = None
    """Ready to run, and no CPU was free."""
    slices: int | None = None
    """How often it was put on a CPU: a thread that waits for the GIL wakes at every switch interval."""


def parse_schedstat(text: str) -> ThreadUse:
    cpu_ns, delay_ns, slices = text.split()[:3]
    return ThreadUse(cpu_s=int(cpu_ns) / 1e9, run_delay_s=int(delay_ns) / 1e9, slices=int(slices))


def parse_stat(text: str, ticks_per_s: int) -> ThreadUse:
    # The name in brackets may hold spaces and brackets, so fields are counted after the last one.
    fields = text.rpartition(")")[2].split()
    return ThreadUse(cpu_s=(int(fields[11]) + int(fields[12])) / ticks_per_s)


class ThreadMeter:
    """Reads one live thread of this process from any other."""

    def __init__(self, ident: int, native_id: int) -> None:
        self._ident = ident
        self._schedstat = _open(f"/proc/self/task/{native_id}/schedstat")
        self._stat = None if self._schedstat is not None else _open(f"/proc/self/task/{native_id}/stat")

    def read(self) -> ThreadUse:
        """Totals now; an empty answer once the thread is gone."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            if self._schedstat is not None:
                return parse_schedstat(os.pread(self._schedstat, 256, 0).decode())
            if self._stat is not None:
                return parse_stat(os.pread(self._stat, 1024, 0).decode(), os.sysconf("SC_CLK_TCK"))
            return self._from_clock()
        return ThreadUse()

    def _from_clock(self) -> ThreadUse:
        if not hasattr(time, "pthread_getcpuclockid"):
            return ThreadUse()
        return ThreadUse(cpu_s=time.clock_gettime(time.pthread_getcpuclockid(self._ident)))

    def close(self) -> None:
        for descriptor in (self._schedstat, self._stat):
            if descriptor is not None:
                os.close(descriptor)
        self._schedstat = self._stat = None


def _open(path: str) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    # Some kernels list the file and answer nothing, or refuse to.
    with contextlib.suppress(OSError):
        if os.pread(descriptor, 256, 0).strip():
            return descriptor
    os.close(descriptor)
    return None
