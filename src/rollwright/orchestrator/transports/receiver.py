"""The trainer's end, and all that a trainer needs: batches in the order of their steps, each once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from rollwright.orchestrator.batches import Batch
from rollwright.orchestrator.contracts import PolicyVersion
from rollwright.wire import UsageError

from .contract import Feed
from .directory import FileFeed

_LONGEST_PATH = 3000
"""A letter has room for it."""
_LONGEST_WAIT_S = 1.0
"""What is not answered by then is asked again."""
_PATIENCE_S = 60.0
"""How long a batch that is there may take to come, for who names no time."""


class BatchReceiver:
    """Batches from a directory, or from `tcp://host:port` with the key that the orchestrator wrote down.

    Begins after the newest step that was acked, or with `first_step`. Arrays are read-only views of memory that lives
    as long as any of them; copy what is to be changed. A file that is not a batch raises WireError and stays the next
    one, so asking again tells the same. Used by one thread.
    """

    def __init__(
        self,
        source: Path | str,
        first_step: int | None = None,
        *,
        key: str = "",
        poll_s: float = 0.05,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if first_step is not None and first_step < 1:
            raise UsageError(f"first_step is {first_step}; steps count from 1")
        self.next_step = first_step
        """None until it is learned what was acked."""
        self._feed = feed_of(source, key)
        self._poll_s = poll_s
        self._clock = clock
        self._sleep = sleep

    def __repr__(self) -> str:
        return f"<BatchReceiver of {self._feed!r}, next step {self.next_step or 'unknown'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def receive(self, timeout_s: float) -> Batch:
        """The next batch, as soon as it is there. Blocks; TimeoutError when it is not there in time, and asking again
        goes on where this ended."""
        deadline = self._clock() + timeout_s
        while (batch := self._take(deadline)) is None:
            left = deadline - self._clock()
            if left <= 0:
                raise TimeoutError(f"no batch of step {self.next_step} came from {self._feed!r} within {timeout_s:g} s")
            self._sleep(min(left, self._poll_s))
        return batch

    def __iter__(self) -> Iterator[Batch]:
        """The batches that are there; ends before the first that is not there yet. TimeoutError when nobody answers."""
        while (batch := self._take(self._clock() + _PATIENCE_S)) is not None:
            yield batch

    def ack(self, step: int | None = None, timeout_s: float = 30.0) -> None:
        """The trainer is done with `step` and all before, and with the last one received if none is named: they are
        never sent again. TimeoutError when it is not on record in time."""
        received = (self.next_step or 1) - 1
        step = received if step is None else step
        if not 1 <= step <= received:
            raise UsageError(f"step {step} cannot be acked: the last batch received is {received}")
        self._insist(f"the ack of step {step}", timeout_s, lambda within_s: self._feed.ack(step, within_s))

    def publish(self, version: int, path: Path | str = "", timeout_s: float = 30.0) -> None:
        """The weights of `version` are ready at `path`, where the engines find them: training on the batches up to that
        step has made them. Older versions that are told late change nothing."""
        if version < 0 or len(str(path)) > _LONGEST_PATH:
            raise UsageError(f"versions count from 0, and a path has at most {_LONGEST_PATH} characters")
        policy = PolicyVersion(version, str(path))
        self._insist(f"version {version}", timeout_s, lambda within_s: self._feed.publish(policy, within_s))

    def _insist(self, what: str, timeout_s: float, ask: Callable[[float], bool]) -> None:
        deadline = self._clock() + timeout_s
        while not ask(min(_LONGEST_WAIT_S, max(deadline - self._clock(), 0.0))):
            if self._clock() >= deadline:
                raise TimeoutError(f"{what} did not reach {self._feed!r} in time")

    def close(self) -> None:
        self._feed.close()

    def _take(self, deadline: float) -> Batch | None:
        """None if the next batch is not there yet, TimeoutError if it could not be had, or learned of, in time."""
        while self.next_step is None:
            acked = self._feed.acked(min(_LONGEST_WAIT_S, max(deadline - self._clock(), 0.0)))
            if acked is not None:
                self.next_step = acked + 1
            elif self._clock() >= deadline:
                raise TimeoutError(f"no answer came from {self._feed!r} in time")
        batch = self._feed.fetch(self.next_step, max(deadline - self._clock(), 0.0))
        if batch is not None:
            self.next_step += 1
        return batch


def feed_of(source: Path | str, key: str) -> Feed:
    if isinstance(source, str) and source.startswith(("tcp://", "ipc://")):
        from .pulling import SocketFeed

        return SocketFeed(source, key)
    return FileFeed(Path(source))
