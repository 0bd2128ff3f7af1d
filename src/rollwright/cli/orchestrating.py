"""One run of the orchestrator from opening the engines to the last word."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from rollwright.engines.config import EngineConfig
from rollwright.engines.factory import open_engine
from rollwright.harnesses import make_harness
from rollwright.orchestrator import (
    EvalPlan,
    EvalReport,
    EvalSource,
    Orchestrator,
    Report,
    Source,
    SourcePlan,
    StepReport,
)
from rollwright.orchestrator.archive import archive
from rollwright.orchestrator.contracts import GroupRunner
from rollwright.orchestrator.fleet import EngineFleet
from rollwright.orchestrator.observing import publish_run, publish_step
from rollwright.orchestrator.policies import PolicyWatch
from rollwright.orchestrator.transports import FileSender
from rollwright.orchestrator.transports.directory import DepotSender
from rollwright.orchestrator.transports.zmq import ZmqSender
from rollwright.rollouts import Environment
from rollwright.tasks import Task, Taskset, load_tasks, make_taskset
from rollwright.telemetry import LoopLagMonitor, MemoryTrimmer, Metrics, publish_health, started
from rollwright.telemetry.publishing import publishing

from .batching import OrchestrateCommand
from .dashboard import Dashboard, eval_line, step_line
from .interrupts import Interrupts
from .jobs import Job, chosen, prove
from .resolve import SOLVER
from .table import shown
from .talk import Talk, result

Runner = GroupRunner[Task]


class OrchestrateRun:
    """One call of the command: it opens everything, makes the batches that are missing, and closes everything."""

    def __init__(self, job: Job[OrchestrateCommand], talk: Talk) -> None:
        self._job = job
        self._talk = talk
        self._monitor = LoopLagMonitor()
        self._trimmer = MemoryTrimmer()
        self._metrics = Metrics()
        self._engines: dict[str, Any] = {}
        self._dashboard = Dashboard(f"{job.taskset_name} with {job.settings.model}", self._monitor)

    async def run(self) -> int:
        with Interrupts(self._talk.say) as interrupts:
            try:
                report = await self._orchestrated()
            except asyncio.CancelledError:
                if not interrupts.presses:
                    raise
                self._talk.say(f"Interrupted. Add --resume -o {self._job.place} to go on.")
                return 1
            except OSError as error:
                place, reason = self._job.place, error.strerror or str(error)
                self._talk.say(f"Error: {place} cannot be written: {reason}; mend that, then add --resume -o {place}")
                return 1
        self._tell(report)
        return 0

    async def _orchestrated(self) -> Report:
        job, settings = self._job, self._job.settings
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._trimmer)
            sources = await self._sources(stack)
            evals = await self._evals(stack)
            sender = await self._sender(stack)
            fleet = await stack.enter_async_context(EngineFleet(settings.fleet)) if settings.fleet.urls else None
            kept = await stack.enter_async_context(archive(job.place / "rollouts")) if settings.save_rollouts else None
            await stack.enter_async_context(self._monitor)
            orchestrator = Orchestrator(
                settings.orchestration(),
                sources,
                sender=sender,
                evals=evals,
                policies=PolicyWatch(job.place) if settings.follow else None,
                engines=fleet,
                on_step=self._on_step,
                on_eval=self._on_eval,
                on_traces=kept.keep if kept is not None else None,
                monitor=self._monitor,
            )
            publish_health(self._metrics, self._monitor, self._trimmer)
            publish_run(self._metrics, orchestrator, self._monitor)
            self._dashboard.watch(orchestrator)
            started()
            path = job.place / "metrics.jsonl"
            publish = publishing(self._metrics, settings.metrics, path, name=job.place.name)
            async with publish, shown(self._dashboard.panel, self._talk):
                report = await orchestrator.run()
            await self._hand_over(sender)
            return report

    async def _hand_over(self, sender: DepotSender) -> None:
        """Over a socket, the trainer gets the last batches from this process: stay until it has them."""
        waiting, _ = sender.unacked
        if self._job.settings.transport.kind != "zmq" or not waiting:
            return
        self._talk.say(f"{waiting} batches wait for the trainer. Press Ctrl+C to leave; --resume offers them again.")
        await sender.drained(self._job.settings.version_timeout_s)

    def _on_step(self, report: StepReport) -> None:
        publish_step(self._metrics, report)
        self._dashboard.step(report)
        self._talk.say(step_line(report))

    def _on_eval(self, report: EvalReport) -> None:
        self._metrics.gauge("eval_reward_mean", "Of the last evaluation.", source=report.source).set(report.reward_mean)
        self._dashboard.evaluated(report)
        self._talk.say(eval_line(report))

    # What is opened

    async def _sources(self, stack: AsyncExitStack) -> list[Source[Task]]:
        job, settings = self._job, self._job.settings
        runner = await self._served(stack, job.taskset_name, job.taskset, job.engine)
        plan = SourcePlan(
            name=job.taskset_name, tasks=len(job.tasks), group_size=settings.group_size, sampler=settings.sampler
        )
        sources = [Source(plan, runner, job.tasks)]
        for more in settings.sources:
            taskset = make_taskset(more.taskset, more.options)
            tasks = await asyncio.to_thread(load_tasks, taskset)
            runner = await self._served(stack, more.taskset, taskset, self._engine_for(more.taskset, more.options))
            size = settings.group_size if more.group_size is None else more.group_size
            plan = SourcePlan(
                name=more.taskset, tasks=len(tasks), group_size=size, ratio=more.ratio, sampler=more.sampler
            )
            sources.append(Source(plan, runner, tasks))
        return sources

    async def _evals(self, stack: AsyncExitStack) -> list[EvalSource[Task]]:
        evals = []
        for held_out in self._job.settings.evals:
            taskset = make_taskset(held_out.taskset, held_out.options)
            tasks = chosen(await asyncio.to_thread(load_tasks, taskset), held_out.tasks, seed=None)
            engine = self._engine_for(held_out.taskset, held_out.options)
            runner = await self._served(stack, held_out.taskset, taskset, engine)
            plan = EvalPlan(
                name=f"eval {held_out.taskset}", tasks=len(tasks), attempts=held_out.attempts, every=held_out.every
            )
            evals.append(EvalSource(plan, runner, tasks))
        return evals

    def _engine_for(self, taskset_name: str, options: dict[str, Any]) -> EngineConfig:
        """The engine of the run. The scripted one solves the tasks that it is asked about."""
        engine = self._job.engine
        if engine.scripted.solver != SOLVER:
            return engine
        told = {"taskset": taskset_name, "options": options}
        return msgspec.structs.replace(engine, scripted=msgspec.structs.replace(engine.scripted, solver_options=told))

    async def _served(self, stack: AsyncExitStack, name: str, taskset: Taskset, engine_config: EngineConfig) -> Runner:
        settings = self._job.settings
        if settings.workers:
            from .served import environment_spec, served

            of_this = msgspec.structs.replace(settings, taskset=taskset)
            spec = environment_spec(of_this, name, engine_config, tokens=True)
            return await stack.enter_async_context(
                served(spec, workers=settings.workers, concurrency=settings.in_flight.most)
            )
        engine = await stack.enter_async_context(open_engine(engine_config, settings.model))
        await prove(engine, engine_config)
        environment = Environment(
            taskset,
            harness=make_harness(settings.harness),
            runtime=settings.runtime,
            limits=settings.limits,
            pool=settings.pool,
            group=settings.group,
        )
        return await stack.enter_async_context(
            environment.serving(engine, settings.model, sampling=settings.sampling, return_tokens=True)
        )

    async def _sender(self, stack: AsyncExitStack) -> DepotSender:
        place, transport = self._job.place, self._job.settings.transport
        sender: FileSender | ZmqSender
        if transport.kind == "files":
            sender = FileSender(place, keep_batches=transport.keep_batches, sync=transport.sync)
        else:
            sender = ZmqSender(place, transport.bind, keep_batches=transport.keep_batches, sync=transport.sync)
            self._talk.say(f"Trainers connect to {sender.address} with the key in {place / 'trainer.key'}.")
        stack.push_async_callback(sender.close)
        return sender

    def _tell(self, report: Report) -> None:
        lost = [*report.dropped.items(), *report.failed.items()]
        reasons = f" ({', '.join(f'{count} {reason}' for reason, count in lost)})" if lost else ""
        batches = "1 batch" if report.steps == 1 else f"{report.steps} batches"
        words = (
            f"{batches} in {report.output}: {report.samples} samples, {report.tokens:,} tokens, "
            f"{report.trained} of {report.dispatched} rollouts trained{reasons}"
        )
        if not self._job.settings.json:
            result(words)
            return
        self._talk.say(words)
        table = {
            **msgspec.to_builtins(report),
            "taskset": self._job.taskset_name,
            "model": self._job.settings.model,
        }
        result(msgspec.json.encode(table).decode())
