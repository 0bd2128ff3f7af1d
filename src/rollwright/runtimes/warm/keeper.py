"""Who is loaded on this host: one zygote per script and event loop, shared by all boxes, replaced when it is spent.

A script that cannot be loaded warm is remembered as such until it changes, so that the failure is paid for once.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rollwright.runtimes.local.threads import in_thread
from rollwright.runtimes.provision import provision
from rollwright.runtimes.provision.flights import Flights
from rollwright.runtimes.scripts import absolute
from rollwright.runtimes.slots import CpuSlots

from .crew import Crew
from .seat import Loadable
from .stats import stats
from .workers import Worker
from .zygotes import Unwarm, Zygote, stamp, start_zygote

K = TypeVar("K")
V = TypeVar("V")

_IDLE_WORKERS = 64
_SETTLED_S = 0.1
_CHECKED_EVERY = 64
_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class Care:
    """When a zygote is spent."""

    load_s: float = 120.0
    """Time to load a script and warm it up."""
    max_calls: int = 20_000
    """Forks of a zygote, and answers of a shared worker."""
    max_growth_mb: float = 256.0
    """Memory beyond what it had when it was loaded."""
    max_zygotes: int = 8
    """Scripts that are kept loaded; the one that was not asked for longest gives way."""


class Keeper:
    """The zygotes of one event loop."""

    def __init__(self, care: Care | None = None) -> None:
        self.care = care or Care()
        self._zygotes: dict[Loadable, Zygote] = {}
        self._refused: dict[Loadable, str] = {}
        self._known: dict[str, tuple[tuple[int, ...], Loadable]] = {}
        self._workers: dict[Loadable, list[Worker]] = {}
        self._crews: dict[tuple[Loadable, int], Crew] = {}
        self._flights: Flights[Zygote] = Flights()

    def __repr__(self) -> str:
        return f"<Keeper {len(self._zygotes)} loaded, {len(self._refused)} refused>"

    async def look_up(self, script: Path) -> Loadable:
        """The script as it is now, with its interpreter. A file that has not changed is not read again."""
        path = os.fspath(script)
        if path not in self._known:
            path = absolute(script)
        seen = stamp(path)
        known = self._known.get(path)
        if known is not None and seen and known[0] == seen:
            return known[1]
        python = await provision(script)
        digest = await in_thread(_digest, path)
        loadable = Loadable(python, path, digest)
        # A file that was written a moment ago may be written again within the same tick of the clock.
        if seen and seen == stamp(path) and time.time() - seen[3] / 1e9 > _SETTLED_S:
            _forget_oldest(self._known, _REMEMBERED)
            self._known[path] = (seen, loadable)
        return loadable

    async def zygote(self, script: Loadable) -> Zygote:
        """A zygote that can be asked for children of `script` now; Unwarm where there is none to be had."""
        if script in self._refused:
            raise Unwarm(self._refused[script])
        zygote = self._zygotes.get(script)
        if zygote is not None and not self._spent(zygote):
            self._zygotes[script] = self._zygotes.pop(script)
            return zygote
        return await self._flights.join(str(script), lambda: self._start(script))

    async def worker(self, script: Loadable) -> Worker:
        """A worker for shared calls of `script` that has nothing to do; its taker gives it back."""
        zygote = await self.zygote(script)
        worker = self.idle_worker(script)
        if worker is not None:
            return worker
        stats.started += 1
        return Worker(zygote)

    def idle_worker(self, script: Loadable) -> Worker | None:
        """As `worker`, where one is there already."""
        idle = self._workers.get(script, [])
        while idle:
            worker = idle.pop()
            if not worker.broken and not self.outworn(worker):
                return worker
            worker.close()
        return None

    def outworn(self, worker: Worker) -> bool:
        """Whether it is to be asked no more: it has served long enough, or its zygote has given way to another."""
        return worker.asked >= self.care.max_calls or self._zygotes.get(worker.zygote.script) is not worker.zygote

    def give_back(self, worker: Worker) -> None:
        idle = self._workers.setdefault(worker.zygote.script, [])
        if worker.broken or len(idle) >= _IDLE_WORKERS or self.outworn(worker):
            worker.close()
        else:
            idle.append(worker)

    def crew(self, script: Loadable, slots: CpuSlots) -> Crew:
        """Those who share workers of `script` in these slots."""
        key = (script, id(slots))
        if key not in self._crews:
            for old in [old for old, crew in self._crews.items() if crew.idle]:
                del self._crews[old]
            self._crews[key] = Crew(self, script, slots)
        return self._crews[key]

    async def close(self) -> None:
        """End all zygotes, with what runs in them, and see them gone."""
        for crew in list(self._crews.values()):
            await crew.close()
        self._crews.clear()
        for idle in self._workers.values():
            for worker in idle:
                worker.close()
        self._workers.clear()
        zygotes = list(self._zygotes.values())
        self._zygotes.clear()
        for zygote in zygotes:
            zygote.lose("closed")
            await zygote.gone()

    async def _start(self, script: Loadable) -> Zygote:
        replaced = self._zygotes.pop(script, None)
        try:
            zygote = await start_zygote(script, within_s=self.care.load_s)
        except Unwarm as refusal:
            _forget_oldest(self._refused, _REMEMBERED)
            self._refused[script] = str(refusal)
            raise
        finally:
            stats.started += 1
            stats.replaced += replaced is not None
        self._zygotes[script] = zygote
        if len(self._zygotes) > self.care.max_zygotes:
            # Calls that run in it go on: it ends when the last of them lets go of it.
            oldest = next(iter(self._zygotes))
            del self._zygotes[oldest]
            for worker in self._workers.pop(oldest, []):
                worker.close()
        return zygote

    def _spent(self, zygote: Zygote) -> bool:
        if zygote.broken or zygote.calls >= self.care.max_calls or not zygote.current():
            return True
        checked = zygote.calls % _CHECKED_EVERY == _CHECKED_EVERY - 1
        return checked and zygote.memory_mb() - zygote.fresh_mb > self.care.max_growth_mb


_keepers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Keeper] = weakref.WeakKeyDictionary()


def keeper() -> Keeper:
    """The one of the running loop."""
    loop = asyncio.get_running_loop()
    found = _keepers.get(loop)
    if found is None:
        found = _keepers[loop] = Keeper()
    return found


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _forget_oldest(memory: dict[K, V], room: int) -> None:
    while len(memory) >= room:
        del memory[next(iter(memory))]
