"""Groups in, batches out. The loop only carries: planner.py and evals.py decide, storage.py and the sender do in
threads whatever is of the size of tokens.

Evaluations, cancellations and new versions are never behind a batch: launching, following the trainer and shipping are
tasks of their own that meet in the planner. Every wait has a deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rollwright.telemetry import LoopLagMonitor
from rollwright.wire import RolloutError, RollwrightError, Trace, UsageError

from .advantages import make_advantage
from .arriving import Arriving
from .checkpoints import Checkpoint
from .concurrency import Concurrency
from .contracts import AnySource, Engines, EvalSource, GroupRunner, PolicyFeed, Source, TrainingBatchSender
from .evals import EvalReport, Evals
from .filters import make_filters
from .groups import Arrival, Landed, Ticket, finished, lost_group, outcome_of
from .planner import Planner
from .plans import Cut
from .reports import Report, Reporter, StepReport
from .settings import OrchestrateSettings
from .storage import Storage

T = TypeVar("T")
GAUGE_EVERY_S = 2.0
LANDING_THREADS = 2


class PolicyLost(RollwrightError):
    """The trainer published no version in time, and nothing can go on without one."""


class Orchestrator:
    """`report = await Orchestrator(settings, [source], sender=BatchWriter(directory)).run()`."""

    def __init__(
        self,
        settings: OrchestrateSettings,
        sources: Sequence[Source[Any]],
        *,
        sender: TrainingBatchSender,
        evals: Sequence[EvalSource[Any]] = (),
        policies: PolicyFeed | None = None,
        engines: Engines | None = None,
        on_step: Callable[[StepReport], None] | None = None,
        on_eval: Callable[[EvalReport], None] | None = None,
        on_traces: Callable[[Ticket, Sequence[Trace]], Awaitable[None]] | None = None,
        monitor: LoopLagMonitor | None = None,
    ) -> None:
        """Without `policies` there is no trainer to follow, and steps are made as fast as groups come back. `on_traces`
        is given every group that comes back, and its samples are ready when it returns."""
        every: list[AnySource] = [*sources, *evals]
        names = [source.plan.name for source in every]
        if len(set(names)) != len(names):
            raise UsageError(f"each source needs a name of its own; got {', '.join(names)}")
        self._settings = settings
        self._sources: dict[str, AnySource] = {source.plan.name: source for source in every}
        self._plans = [source.plan for source in sources]
        self._eval_plans = [source.plan for source in evals]
        self._sender = sender
        self._policies = policies
        self._engines = engines
        self._on_step, self._on_eval, self._on_traces = on_step, on_eval, on_traces
        self._filters = make_filters(settings.filters)
        self._storage = Storage(
            Path(settings.output),
            filters=self._filters.rollout,
            errors=settings.errors,
            packing=settings.pack,
            durable=settings.durable,
        )
        self._arriving = Arriving(settings.max_landing_mb * 2**20)
        self._planner = self._make_planner(None)
        self._evals = Evals(self._eval_plans, settings.eval_seats)
        self._concurrency = Concurrency(settings.concurrency)
        self._reporter = Reporter(Path(settings.output), monitor)
        self._seats: dict[int, asyncio.Task[None]] = {}
        self._ship: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._over = False
        self._landing = ThreadPoolExecutor(LANDING_THREADS, thread_name_prefix="landing")

    def __repr__(self) -> str:
        return f"<Orchestrator {self._planner!r}, {self._evals.running} rollouts of evaluations>"

    @property
    def planner(self) -> Planner:
        """The books of the run, to be read."""
        return self._planner

    @property
    def concurrency(self) -> Concurrency:
        return self._concurrency

    @property
    def arriving(self) -> Arriving:
        """What has come back and is not in its file yet."""
        return self._arriving

    def cancel_group(self, number: int) -> bool:
        """End a group that is running; its rollouts count as dropped. False if it is not running."""
        cancelled = self._planner.cancel(number)
        self._end_seats([number] if cancelled else [])
        return cancelled

    def cancel_rollout(self, number: int, member: int) -> bool:
        """End one rollout of a group that is running; it counts as dropped, and the others go on. False if it is not
        running."""
        ticket = self._planner.ticket(number)
        if ticket is None or not 0 <= member < ticket.size:
            return False
        source = self._sources[ticket.source]
        return source.runner.cancel_rollout(source.tasks[ticket.task], ticket.first_attempt + member)

    async def run(self) -> Report:
        """Make the batches that are still to be made. GroupsFailed when tasks or engine give nothing to train on."""
        with self._landing, closing(self._storage):
            await self._in_thread(self._open)
            try:
                async with asyncio.TaskGroup() as tasks:
                    await self._carry(tasks)
            except BaseExceptionGroup as several:
                # The first error speaks; the others are what its cancellation did to its neighbours.
                raise several.exceptions[0] from several
            finally:
                self._over = True
            self._planner.end()
            await self._checkpoint()
            return self._reporter.sum(self._planner.accounts)

    # The run

    def _open(self) -> None:
        found = self._storage.open(self._identity())
        if found.checkpoint is not None:
            self._planner = self._make_planner(found.checkpoint)
            self._evals = Evals(self._eval_plans, self._settings.eval_seats, found.checkpoint.evals)
            self._concurrency = Concurrency(self._settings.concurrency, found.checkpoint.concurrency)
        self._planner.recover(found.landed, found.shipped)
        self._reporter.begin(self._planner)

    async def _carry(self, tasks: asyncio.TaskGroup) -> None:
        watchers = [tasks.create_task(watch) for watch in self._watchers()]
        self._evals.advance(self._planner.version, time.monotonic())
        while not (self._planner.finished and self._ship is None and self._evals.idle):
            self._turn(tasks)
            await self._until_something_happens()
        for task in (*watchers, *self._seats.values()):
            task.cancel()

    def _watchers(self) -> list[Coroutine[Any, Any, None]]:
        watchers = []
        if self._policies is not None:
            watchers.append(self._follow(self._policies))
        if self._engines is not None:
            watchers.append(self._watch_engines(self._engines))
        return watchers

    def _turn(self, tasks: asyncio.TaskGroup) -> None:
        """Begin all that can begin now."""
        tickets = self._evals.launch()
        if not self._planner.finished and self._arriving.has_room:
            tickets += self._planner.launch(self._concurrency.limit)
        for ticket in tickets:
            self._seats[ticket.number] = tasks.create_task(self._play(ticket), name=f"group {ticket.number}")
        if self._ship is None and (cut := self._planner.cut()) is not None:
            self._ship = tasks.create_task(self._ship_batch(cut), name=f"batch {cut.step}")

    async def _until_something_happens(self) -> None:
        # Whatever runs has a deadline of its own, so only a version may be waited for in vain.
        blocked = self._planner.blocked_on_policy and self._ship is None and self._evals.idle
        try:
            async with asyncio.timeout(self._settings.version_timeout_s if blocked else None):
                await self._wake.wait()
        except TimeoutError as error:
            raise PolicyLost(
                f"no policy version after {self._planner.version} came within "
                f"{self._settings.version_timeout_s:g} s; step {self._planner.step + 1} needs it"
            ) from error
        self._wake.clear()

    # One group

    async def _play(self, ticket: Ticket) -> None:
        try:
            landed = await self._landed(ticket)
        finally:
            self._seats.pop(ticket.number, None)
        now = time.monotonic()
        if self._evals.owns(ticket.number):
            report = self._evals.arrive(landed, now)
            if report is not None:
                self._reporter.evaluated(report)
                if self._on_eval is not None:
                    self._on_eval(report)
        elif self._planner.arrive(landed):
            self._reporter.arrived(landed)
        else:
            await self._in_thread(self._storage.forget, landed)
        self._wake.set()

    async def _landed(self, ticket: Ticket) -> Landed:
        source = self._sources[ticket.source]
        task = source.tasks[ticket.task]
        try:
            async with asyncio.timeout(self._settings.group_timeout_s):
                traces = list(await source.runner.run_group(task, ticket.size, first_attempt=ticket.first_attempt))
        except TimeoutError:
            return lost_group(ticket, "group_timed_out")
        except RolloutError as error:
            return lost_group(ticket, f"{error.layer}/{type(error).__name__}")
        if len(traces) != ticket.size:
            raise RollwrightError(f"a group of {ticket.size} rollouts came back with {len(traces)} traces")
        self._tell_pace(traces)
        with ExitStack() as here:
            here.enter_context(self._arriving.counted(traces))
            if self._on_traces is not None:
                await self._on_traces(ticket, tuple(traces))
            if self._evals.owns(ticket.number):
                return Landed(ticket, tuple(Arrival(outcome_of(t), t.reward, finished(t)) for t in traces))
            return await self._land(ticket, traces, here)

    async def _land(self, ticket: Ticket, traces: list[Trace], here: ExitStack) -> Landed:
        landing = asyncio.get_running_loop().run_in_executor(self._landing, self._storage.land, ticket, traces)
        try:
            return await asyncio.shield(landing)
        except asyncio.CancelledError:
            # A thread cannot be stopped. What it makes is let go when it is there, and what it reads counts until then.
            landing.add_done_callback(partial(self._forget_late, here.pop_all()))
            raise

    def _forget_late(self, here: ExitStack, landing: asyncio.Future[Landed]) -> None:
        here.close()
        self._wake.set()
        # After the end of the run its file stays: a later life of the run finds and settles it.
        if not self._over and not landing.cancelled() and landing.exception() is None:
            self._landing.submit(self._storage.forget, landing.result())

    def _tell_pace(self, traces: Sequence[Trace]) -> None:
        calls = sum(len(trace.calls) for trace in traces)
        if calls:
            spent_s = sum(trace.timing.model_s for trace in traces)
            self._concurrency.took(spent_s / calls, self._planner.in_flight, time.monotonic())

    def _end_seats(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if (seat := self._seats.pop(number, None)) is not None:
                seat.cancel()
        self._wake.set()

    # The trainer

    async def _ship_batch(self, cut: Cut) -> None:
        began = time.monotonic()
        batch = await self._in_thread(self._storage.batch, cut)
        shipped = await self._sender.send(batch)
        self._end_seats(self._planner.shipped())
        ship_s = time.monotonic() - began
        draft = self._reporter.prepare(
            cut,
            self._planner,
            shipped,
            limit=self._concurrency.limit,
            landing_bytes=self._arriving.bytes,
            ship_s=ship_s,
        )
        await self._checkpoint()
        await self._sender.prune(cut.step)
        report = await self._in_thread(self._reporter.write, draft, batch)
        if self._on_step is not None:
            self._on_step(report)
        self._ship = None
        self._wake.set()

    async def _follow(self, policies: PolicyFeed) -> None:
        async for policy in policies.versions():
            # What is too old for this version is cancelled first, so that engines do not pause with it in their hands.
            self._end_seats(self._planner.advance(policy.version))
            if self._engines is not None:
                await self._engines.serve(policy)
            await asyncio.gather(*(runner.tell_policy(policy.version) for runner in self._runners()))
            self._evals.advance(policy.version, time.monotonic())
            self._wake.set()

    def _runners(self) -> list[GroupRunner[Any]]:
        return list({id(source.runner): source.runner for source in self._sources.values()}.values())

    async def _watch_engines(self, engines: Engines) -> None:
        while True:
            gauge = await engines.gauge()
            if gauge is not None:
                self._concurrency.gauge(gauge, self._planner.in_flight, time.monotonic())
                self._wake.set()
            await asyncio.sleep(GAUGE_EVERY_S)

    # The disk

    async def _checkpoint(self) -> None:
        released = self._planner.take_released()
        checkpoint = Checkpoint(
            identity=self._identity(),
            plan=self._planner.snapshot(),
            evals=self._evals.state(),
            concurrency=self._concurrency.limit,
        )
        await self._in_thread(self._storage.save, checkpoint, released)

    def _identity(self) -> dict[str, str | int | float]:
        identity: dict[str, str | int | float] = {"seed": self._settings.seed}
        for plan in self._plans:
            identity |= {f"tasks of {plan.name}": plan.tasks, f"group_size of {plan.name}": plan.group_size}
        return identity

    def _make_planner(self, checkpoint: Checkpoint | None) -> Planner:
        settings = self._settings
        return Planner(
            settings.plan(follow=self._policies is not None),
            self._plans,
            make_advantage(settings.advantage),
            self._filters,
            checkpoint.plan if checkpoint else None,
        )

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._landing, work, *args)
