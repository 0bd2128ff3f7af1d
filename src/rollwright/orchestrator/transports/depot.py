"""The batches that a trainer may still want, as files: what is sent, what is acked, what may go.

The files are the truth. A depot over the directory of a process that was killed knows what that one knew, so whatever
was sent and not acked is offered again. Its methods block and may be called from any thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from rollwright.orchestrator.batches import Batch
from rollwright.orchestrator.contracts import Shipped
from rollwright.wire import UsageError

from . import files

_log = logging.getLogger(__name__)


class Depot:
    def __init__(self, directory: Path, *, keep_batches: int = 0, sync: bool = True) -> None:
        self.directory = directory
        self._keep_batches = keep_batches
        self._sync = sync
        self._released = 0
        self.on_ack: Callable[[], object] | None = None
        """Called in any thread when something more is acked."""
        self._writing = threading.Lock()
        self._acking = threading.Lock()
        self._lock = threading.Lock()
        """Held for a few lines and never for the disk: a loop may ask what is unacked."""
        self._sizes = _whole_batches(directory)
        self._acked = files.read_acked(directory)
        self._last = max([self._acked, *self._sizes])

    def __repr__(self) -> str:
        batches, bytes = self.unacked
        return f"<Depot {self.directory.name}: acked {self._acked}, {batches} batches of {bytes} bytes to be acked>"

    @property
    def acked(self) -> int:
        return self._acked

    @property
    def last(self) -> int:
        """The newest step that was sent."""
        return self._last

    @property
    def unacked(self) -> tuple[int, int]:
        """Batches and bytes."""
        with self._lock:
            sizes = [size for step, size in self._sizes.items() if step > self._acked]
        return len(sizes), sum(sizes)

    def put(self, batch: Batch) -> Shipped:
        # One at a time: a send that was cancelled may still be writing.
        with self._writing:
            # A trainer may have read the first one, so another batch of the same step would be a second truth.
            if batch.step <= self._last:
                raise UsageError(f"step {batch.step} is sent already; the next step to send is {self._last + 1}")
            path = files.write_batch(self.directory, batch, sync=self._sync)
            size = path.stat().st_size
            with self._lock:
                self._sizes[batch.step] = size
                self._last = batch.step
        return Shipped(path, size)

    def find(self, step: int) -> Path | None:
        """The file of a step that is whole."""
        with self._lock:
            return files.batch_path(self.directory, step) if step in self._sizes else None

    def acknowledge(self, step: int) -> None:
        """The trainer is done with `step` and all before. On record when this returns."""
        with self._acking:
            if not self._acked < step <= self._last:
                return
            files.write_acked(self.directory, step)
            with self._lock:
                self._acked = max(self._acked, step)
        self._more_is_acked()

    def look(self) -> None:
        """Learn what a trainer has acked by writing it down itself."""
        acked = files.read_acked(self.directory)
        with self._lock:
            # An ack of what was never sent says nothing about what will be.
            acked = min(acked, self._last)
            if acked <= self._acked:
                return
            self._acked = acked
        self._more_is_acked()

    def _more_is_acked(self) -> None:
        self._prune()
        # Read once: whoever waits may stop waiting at any moment.
        if (tell := self.on_ack) is not None:
            tell()

    def release(self, step: int) -> None:
        """Whoever sends needs the files up to `step` no longer; those that are acked go, now or when they are."""
        self._released = max(self._released, step)
        self._prune()

    def _prune(self) -> None:
        with self._lock:
            newest = min(self._acked - self._keep_batches, self._released)
            gone = [step for step in self._sizes if step <= newest]
            for step in gone:
                del self._sizes[step]
        for step in gone:
            # Who has the file mapped keeps what he sees.
            files.batch_path(self.directory, step).unlink(missing_ok=True)


def _whole_batches(directory: Path) -> dict[int, int]:
    """Sizes by step. A file that a power cut left short was received by nobody, and goes."""
    sizes: dict[int, int] = {}
    for step in files.steps_in(directory):
        path = files.batch_path(directory, step)
        if files.is_whole(path):
            sizes[step] = path.stat().st_size
        else:
            _log.warning("%s is torn and is removed; its step is sent again", path.name)
            path.unlink()
    return sizes
