"""Every task of a set, each so many times, so many at once; what is finished is on disk before it is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Protocol

from rollwright.tasks import Task, hooks_of
from rollwright.wire import Failure, RolloutError, Stop, Trace

from .recorder import Recorder
from .tally import Tally

Unit = tuple[Task, list[int]]
"""A task and the attempts that are still to be made together."""


class Attempts(Protocol):
    """What an evaluation needs of an environment, served in this process or elsewhere."""

    async def run_attempts(self, task: Task, attempts: Sequence[int], earlier: Sequence[Trace] = ()) -> list[Trace]:
        """A trace for each attempt; a rollout that failed is a trace that says so. A RolloutError means that nothing
        of them came back."""
        ...


class Evaluation:
    """Runs what is missing. `drain` stops beginning new rollouts; `drop` also gives up those that run."""

    def __init__(
        self,
        serving: Attempts,
        tasks: Sequence[Task],
        *,
        rollouts: int,
        concurrency: int,
        recorder: Recorder,
        earlier: Callable[[str], Sequence[Trace]] = lambda task_id: (),
        done: Set[tuple[str, int]] = frozenset(),
        tally: Tally | None = None,
    ) -> None:
        self._serving = serving
        self._recorder = recorder
        self._concurrency = concurrency
        self._earlier = earlier
        self._units = list(units(tasks, rollouts, done))
        self.tally = tally or Tally(len(tasks) * rollouts)
        self.in_flight = 0
        self.draining = False
        self._workers: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"<Evaluation {self.tally.finished} of {self.tally.planned}, {self.in_flight} in flight>"

    async def run(self) -> None:
        """Until everything is done, drained or dropped. Raises only what is wrong with all rollouts alike, such as a
        full disk."""
        queue = iter(self._units)
        largest = max((len(attempts) for _, attempts in self._units), default=1)
        width = min(len(self._units), max(1, self._concurrency // largest))
        try:
            for number in range(width):
                self._workers.append(asyncio.create_task(self._work(queue), name=f"evaluation {number}"))
                # Hundreds of first steps in one turn of the loop would hold it for a tenth of a second.
                await asyncio.sleep(0)
            results = await asyncio.gather(*self._workers, return_exceptions=True)
        except asyncio.CancelledError:
            self.drop()
            await asyncio.gather(*self._workers, return_exceptions=True)
            raise
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    def drain(self) -> None:
        self.draining = True

    def drop(self) -> None:
        self.draining = True
        for worker in self._workers:
            worker.cancel()

    async def _work(self, queue: Iterator[Unit]) -> None:
        for task, attempts in queue:
            if self.draining:
                return
            self.in_flight += len(attempts)
            try:
                traces = await self._attempted(task, attempts)
                await self._recorder.record(traces)
            except BaseException:
                self.drain()
                raise
            finally:
                self.in_flight -= len(attempts)
            for trace in traces:
                self.tally.add(trace)

    async def _attempted(self, task: Task, attempts: list[int]) -> list[Trace]:
        try:
            return await self._serving.run_attempts(task, attempts, self._earlier_of(task))
        except RolloutError as error:
            failure = Failure.of(error)
            return [Trace(task.id, attempt, stop=Stop.FAILED, failure=failure) for attempt in attempts]

    def _earlier_of(self, task: Task) -> Sequence[Trace]:
        return self._earlier(task.id) if hooks_of(type(task)).group_rewards else ()


def units(tasks: Sequence[Task], rollouts: int, done: Set[tuple[str, int]]) -> Iterator[Unit]:
    """What is missing. Attempts that are scored together run together; others go one by one, so that the first
    attempts of all tasks are done before the second ones begin."""
    alone = [task for task in tasks if not hooks_of(type(task)).group_rewards]
    together = [task for task in tasks if hooks_of(type(task)).group_rewards]
    for attempt in range(rollouts):
        for task in alone:
            if (task.id, attempt) not in done:
                yield task, [attempt]
    for task in together:
        missing = [attempt for attempt in range(rollouts) if (task.id, attempt) not in done]
        if missing:
            yield task, missing
