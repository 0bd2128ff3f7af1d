"""Batches through a directory: one file per step, there whole or not at all.

A file is written under a name that no reader looks for, brought to the disk, and then renamed, so a crash at any moment
leaves at most that other name behind, which the next writer of the same step overwrites. Readers map the file into
memory. Not covered: removing files that a trainer is done with.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rollwright.orchestrator.batches import Batch, decode_batch, encode_batch
from rollwright.wire import WireError

_NAME = re.compile(r"batch-(\d{8,})\.rwb")
_WRITE_BUFFER_BYTES = 2**20


def batch_path(directory: Path, step: int) -> Path:
    return directory / f"batch-{step:08d}.rwb"


def steps_in(directory: Path) -> list[int]:
    """The steps whose batch is there, in order."""
    if not directory.is_dir():
        return []
    return sorted(int(match[1]) for entry in os.listdir(directory) if (match := _NAME.fullmatch(entry)))


def write_batch(directory: Path, batch: Batch) -> Path:
    """Blocking; the size of tokens is spent in writes, which let other threads run."""
    directory.mkdir(parents=True, exist_ok=True)
    path = batch_path(directory, batch.step)
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with open(unfinished, "wb", buffering=_WRITE_BUFFER_BYTES) as file:
            for buffer in encode_batch(batch):
                file.write(buffer)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    _sync_directory(directory)
    return path


def read_batch(path: Path) -> Batch:
    """Views of the mapped file. The map lives as long as any of them."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise WireError(f"{path.name} is empty")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        batch = decode_batch(memoryview(mapped))
    except WireError as error:
        raise WireError(f"{path.name}: {error}") from error
    return batch


class BatchWriter:
    """The orchestrator's end. Writing happens in a thread, one batch at a time."""

    def __init__(self, directory: Path | str, *, write_timeout_s: float = 600.0) -> None:
        self.directory = Path(directory)
        self._write_timeout_s = write_timeout_s
        self._one_at_a_time = asyncio.Lock()

    async def send(self, batch: Batch) -> Path:
        """Returns when the batch would survive a power cut. A cancelled send may still arrive, and arrives whole."""
        async with asyncio.timeout(self._write_timeout_s), self._one_at_a_time:
            return await asyncio.to_thread(write_batch, self.directory, batch)


class BatchReceiver:
    """The trainer's end: batches in the order of their steps, beginning with `first_step`.

    Arrays are read-only views of the mapped file; copy what is to be changed. A file that is not a batch raises
    WireError and stays the next one, so asking again tells the same.
    """

    def __init__(
        self,
        directory: Path | str,
        first_step: int = 1,
        *,
        poll_s: float = 0.05,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.directory = Path(directory)
        self.next_step = first_step
        self._poll_s = poll_s
        self._clock = clock
        self._sleep = sleep

    def __repr__(self) -> str:
        return f"<BatchReceiver of {self.directory.name}, next step {self.next_step}>"

    def receive(self, timeout_s: float) -> Batch:
        """The next batch, as soon as it is there. Blocks; TimeoutError when it is not there in time."""
        deadline = self._clock() + timeout_s
        while (batch := self._take()) is None:
            left = deadline - self._clock()
            if left <= 0:
                raise TimeoutError(f"no batch of step {self.next_step} came within {timeout_s:g} s")
            self._sleep(min(left, self._poll_s))
        return batch

    def __iter__(self) -> Iterator[Batch]:
        """The batches that are there; ends before the first that is not there yet."""
        while (batch := self._take()) is not None:
            yield batch

    def _take(self) -> Batch | None:
        path = batch_path(self.directory, self.next_step)
        try:
            batch = read_batch(path)
        except FileNotFoundError:
            return None
        if batch.step != self.next_step:
            raise WireError(f"{path.name} holds the batch of step {batch.step}")
        self.next_step += 1
        return batch


def _sync_directory(directory: Path) -> None:
    """A rename is durable when its directory is."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
