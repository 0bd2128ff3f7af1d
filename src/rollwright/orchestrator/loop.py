"""Groups in, batches out: step after step, each waiting for its groups and then for the disk.

The loop only carries. Samples are compiled in a thread as groups arrive, batches are written in a thread. Not covered:
rollouts that outlive a step, new policy versions, going on after a crash.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from rollwright.wire import RolloutError, RollwrightError, Trace, UsageError

from .batches import Batch
from .dispatch import Cursor, Step
from .groups import Group, Ticket, compile_group, lost_group
from .reports import Report, StepReport, report_step
from .settings import OrchestrateSettings
from .transports.files import BatchWriter, steps_in

TaskT = TypeVar("TaskT")
TaskT_contra = TypeVar("TaskT_contra", contravariant=True)


class GroupRunner(Protocol[TaskT_contra]):
    """What the orchestrator needs of a served environment."""

    async def run_group(self, task: TaskT_contra, n: int, *, first_attempt: int = 0) -> list[Trace]:
        """`n` traces, with the attempts from `first_attempt` on. A rollout that failed is a trace that says so; a
        RolloutError means that nothing of the group came back."""
        ...


async def orchestrate(
    settings: OrchestrateSettings,
    serving: GroupRunner[TaskT],
    tasks: Sequence[TaskT],
    on_step: Callable[[StepReport], None] | None = None,
) -> Report:
    """Make `settings.steps` batches. GroupsFailed when the tasks or the engine give nothing to train on."""
    if not tasks:
        raise UsageError("there are no tasks to run; name a taskset that has some")
    output = Path(settings.output)
    if await asyncio.to_thread(steps_in, output):
        raise UsageError(f"{output} already holds batches; name another output directory")
    orchestrator = _Orchestrator(settings, serving, tasks, BatchWriter(output))
    reports: list[StepReport] = []
    for number in range(1, settings.steps + 1):
        reports.append(await orchestrator.step(number))
        if on_step is not None:
            on_step(reports[-1])
    return Report.of(reports, settings.output)


class _Orchestrator(Generic[TaskT]):
    def __init__(
        self,
        settings: OrchestrateSettings,
        serving: GroupRunner[TaskT],
        tasks: Sequence[TaskT],
        writer: BatchWriter,
    ) -> None:
        self._settings = settings
        self._serving = serving
        self._tasks = tasks
        self._writer = writer
        self._cursor = Cursor(len(tasks), seed=settings.seed, group_size=settings.group_size)

    async def step(self, number: int) -> StepReport:
        settings = self._settings
        step = Step(
            number,
            self._cursor,
            groups=settings.groups_per_step,
            group_size=settings.group_size,
            running=settings.max_groups,
            replaced=settings.max_replaced_groups,
        )
        began = time.monotonic()
        await self._collect(step)
        batch = Batch.of(number, (sample for group in step.groups() for sample in group.samples))
        collected = time.monotonic()
        path = await self._writer.send(batch)
        timing = {"collect_s": collected - began, "ship_s": time.monotonic() - collected}
        return await asyncio.to_thread(report_step, step, batch, path, **timing)

    async def _collect(self, step: Step) -> None:
        """Run groups until the step is settled. No wait here is without end: every seat has its deadline."""
        try:
            async with asyncio.TaskGroup() as seats:
                running: set[asyncio.Task[Group]] = set()
                while not step.settled:
                    for ticket in step.launch():
                        running.add(seats.create_task(self._play(ticket), name=f"group {ticket.number}"))
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for seat in done:
                        step.arrive(seat.result())
                for seat in running:
                    seat.cancel()
        except BaseExceptionGroup as several:
            # The first error speaks; the others are what its cancellation did to its neighbours.
            raise several.exceptions[0] from several
        step.abandon()

    async def _play(self, ticket: Ticket) -> Group:
        size = self._settings.group_size
        try:
            async with asyncio.timeout(self._settings.group_timeout_s):
                traces = await self._serving.run_group(
                    self._tasks[ticket.task], size, first_attempt=ticket.first_attempt
                )
        except TimeoutError:
            return lost_group(ticket, size, "group_timed_out")
        except RolloutError as error:
            return lost_group(ticket, size, f"{error.layer}/{type(error).__name__}")
        if len(traces) != size:
            raise RollwrightError(f"a group of {size} rollouts came back with {len(traces)} traces")
        return await asyncio.to_thread(compile_group, ticket, traces, divide_by_std=self._settings.divide_by_std)
