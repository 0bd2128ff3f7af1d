"""Batches through a directory that both sides reach: the orchestrator writes files, the trainer maps them and writes
down what it is done with."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from rollwright.orchestrator.batches import Batch
from rollwright.orchestrator.contracts import PolicyVersion, Shipped
from rollwright.orchestrator.policies import write_policy
from rollwright.telemetry.periodic import PeriodicThread
from rollwright.wire import WireError

from .contract import Window
from .depot import Depot
from .files import batch_path, read_acked, read_batch, write_acked

_log = logging.getLogger(__name__)
_ACK_POLL_S = 0.1


class DepotSender:
    """What every sender does: a batch becomes a file in a thread, as soon as the window has room for it."""

    def __init__(self, depot: Depot, *, window: Window, timeout_s: float) -> None:
        self._depot = depot
        self._window = window
        self._timeout_s = timeout_s
        self._one_at_a_time = asyncio.Lock()

    @property
    def acked(self) -> int:
        return self._depot.acked

    @property
    def unacked(self) -> tuple[int, int]:
        """Batches and bytes that wait for the trainer."""
        return self._depot.unacked

    async def send(self, batch: Batch) -> Shipped:
        """Returns when the batch would survive a power cut, or this process where syncing is off. A cancelled send may
        still arrive, and arrives whole."""
        async with asyncio.timeout(self._timeout_s), self._one_at_a_time:
            await self._room()
            return await asyncio.to_thread(self._depot.put, batch)

    async def _room(self) -> None:
        loop, acked = asyncio.get_running_loop(), asyncio.Event()
        self._depot.on_ack = lambda: loop.call_soon_threadsafe(acked.set)
        try:
            while not self._window.has_room(*self._depot.unacked):
                await acked.wait()
                acked.clear()
        finally:
            self._depot.on_ack = None

    async def drained(self, timeout_s: float) -> bool:
        """Wait until the trainer is done with everything that was sent. False if it is not in time."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._depot.unacked[0]:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(_ACK_POLL_S)
        return True

    async def prune(self, step: int) -> None:
        """Nobody on this side needs the files up to `step`; those that the trainer is done with go, now or later."""
        await asyncio.to_thread(self._depot.release, step)


class FileSender(DepotSender):
    """Batches as files of `directory`, which a trainer can reach. Files that are acked and pruned are removed."""

    def __init__(
        self,
        directory: Path | str,
        *,
        window: Window | None = None,
        keep_batches: int = 0,
        sync: bool = True,
        timeout_s: float = 3600.0,
    ) -> None:
        self.directory = Path(directory)
        depot = Depot(self.directory, keep_batches=keep_batches, sync=sync)
        super().__init__(depot, window=window or Window(), timeout_s=timeout_s)
        self._looking = PeriodicThread("batch acks", _ACK_POLL_S, self._look)
        self._looking.start()

    def __repr__(self) -> str:
        return f"<FileSender {self._depot!r}>"

    async def close(self) -> None:
        await self._looking.aclose()

    def _look(self, late_s: float) -> None:
        try:
            self._depot.look()
        except (OSError, WireError) as error:
            # The thread lives on: the next look may succeed, and a run without acks is stopped by its window.
            _log.warning("cannot see what is acked: %s", error)


class FileFeed:
    """The trainer's end: maps the files of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __repr__(self) -> str:
        return self._directory.name

    def acked(self, within_s: float) -> int | None:
        return read_acked(self._directory)

    def fetch(self, step: int, within_s: float) -> Batch | None:
        path = batch_path(self._directory, step)
        try:
            batch = read_batch(path)
        except FileNotFoundError:
            return None
        if batch.step != step:
            raise WireError(f"{path.name} holds the batch of step {batch.step}")
        return batch

    def ack(self, step: int, within_s: float) -> bool:
        if step > read_acked(self._directory):
            write_acked(self._directory, step)
        return True

    def publish(self, policy: PolicyVersion, within_s: float) -> bool:
        write_policy(self._directory, policy)
        return True

    def close(self) -> None:
        return
