"""One evaluation from opening the engine to the last word: what is missing is run, shown, recorded and summed up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path

import msgspec

from rollwright.engines.factory import open_engine
from rollwright.harnesses import make_harness
from rollwright.rollouts import Attempts, Environment, Evaluation, Recorder
from rollwright.runtimes import RuntimePool
from rollwright.tasks import hooks_of
from rollwright.telemetry import LoopLagMonitor, MemoryTrimmer, Metrics, publish_health, started
from rollwright.telemetry.publishing import publishing
from rollwright.traces import RunDirectory, read_traces
from rollwright.wire import Trace, UsageError

from .books import Books
from .interrupts import Interrupts
from .jobs import Job, prove
from .report import Result, conversation, told
from .settings import EvalSettings
from .table import Panel, glance, panel, shown
from .talk import Talk, result


class EvalRun:
    """One call of the command: it opens everything, runs what is missing, and closes everything."""

    def __init__(self, job: Job[EvalSettings], talk: Talk) -> None:
        self._job = job
        self._talk = talk
        self._title = f"{job.taskset_name} with {job.settings.model}"
        self._monitor = LoopLagMonitor()
        self._trimmer = MemoryTrimmer()
        self._pool: RuntimePool | None = None
        self._earlier: dict[str, list[Trace]] = {}
        """Finished rollouts of groups that an earlier session left incomplete: the group's rewards see them too."""
        settings = job.settings
        self._books = Books(len(job.tasks) * settings.rollouts, pass_threshold=settings.pass_threshold)

    async def run(self) -> int:
        with Interrupts(self._talk.say) as interrupts:
            try:
                return await self._run(interrupts)
            except asyncio.CancelledError:
                if not interrupts.presses:
                    raise
                self._talk.say("Interrupted before the first rollout began.")
                return 1

    async def _run(self, interrupts: Interrupts) -> int:
        job = self._job
        settings = job.settings
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._trimmer)
            serving = await self._serving(stack)
            run = stack.enter_context(await asyncio.to_thread(self._opened))
            recorder = await stack.enter_async_context(Recorder(run))
            evaluation = Evaluation(
                serving,
                job.tasks,
                rollouts=settings.rollouts,
                concurrency=settings.concurrency,
                recorder=recorder,
                earlier=lambda task_id: self._earlier.get(task_id, ()),
                done=run.done,
                tally=self._books,
            )
            interrupts.guard(evaluation)
            return await self._carry_out(evaluation, run, interrupts)

    async def _serving(self, stack: AsyncExitStack) -> Attempts:
        """The environment, served in this process or by workers. The loop is watched from when it is open: opening an
        engine imports its client, and no rollout waits for that."""
        job, settings = self._job, self._job.settings
        if settings.workers:
            from .served import environment_spec, served

            spec = environment_spec(settings, job.taskset_name, job.engine)
            client = served(
                spec,
                workers=settings.workers,
                concurrency=settings.concurrency,
                launcher=settings.launcher,
                ray=settings.ray,
                address=settings.address,
                advertise=settings.advertise,
            )
            workers = await stack.enter_async_context(client)
            await stack.enter_async_context(self._monitor)
            return workers
        engine = await stack.enter_async_context(open_engine(job.engine, settings.model))
        await prove(engine, job.engine)
        await stack.enter_async_context(self._monitor)
        environment = Environment(
            job.taskset,
            harness=make_harness(settings.harness),
            runtime=settings.runtime,
            limits=settings.limits,
            pool=settings.pool,
            group=settings.group,
        )
        serving = await stack.enter_async_context(
            environment.serving(engine, settings.model, sampling=settings.sampling)
        )
        self._pool = serving.pool
        return serving

    async def _carry_out(self, evaluation: Evaluation, run: RunDirectory, interrupts: Interrupts) -> int:
        """Run it, and leave a summary however it ends."""
        self._announce(run)
        self._books.start()
        started()
        try:
            path = run.path / "metrics.jsonl"
            publish = publishing(self._metrics(evaluation), self._job.settings.metrics, path, name=run.path.name)
            async with publish, shown(lambda: self._panel(evaluation), self._talk):
                await evaluation.run()
        except OSError as error:
            self._refused(run, error)
        try:
            found = await asyncio.to_thread(self._concluded, run, bool(interrupts.presses))
        except OSError as error:
            self._refused(run, error)
            return 1
        await asyncio.to_thread(self._tell, found)
        return 0 if found.complete else 1

    def _refused(self, run: RunDirectory, error: OSError) -> None:
        reason = error.strerror or str(error)
        self._talk.say(f"Error: {run.path} cannot be written: {reason}; mend that, then add --resume -o {run.path}")

    def _opened(self) -> RunDirectory:
        """The run directory, with what earlier sessions left in it already counted. Blocks on the disk."""
        job = self._job
        try:
            if not job.settings.resume:
                return RunDirectory.create(job.place, job.config)
            run = RunDirectory.resume(job.place, job.config, may_change=job.settings.may_change)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UsageError(f"{job.place} cannot be written: {reason}; name another one with -o") from error
        self._keep(run)
        return run

    def _keep(self, run: RunDirectory) -> None:
        """Count what earlier sessions left. What else may lie there, such as tasks of a set that shrank since, stays
        on disk and is not counted."""
        job = self._job
        wanted = {(task.id, attempt) for task in job.tasks for attempt in range(job.settings.rollouts)}
        missing = wanted - run.done
        begun = {task_id for task_id, _ in missing}
        grouped = {task.id for task in job.tasks if task.id in begun and hooks_of(type(task)).group_rewards}

        def finished() -> Iterator[Trace]:
            for trace in read_traces(run.path, wanted=lambda trace: trace.key in wanted):
                if trace.task_id in grouped:
                    self._earlier.setdefault(trace.task_id, []).append(trace)
                yield trace

        failed = read_traces(run.path, "failures.jsonl", wanted=lambda trace: trace.key in missing)
        self._books.keep(finished(), failed)

    def _announce(self, run: RunDirectory) -> None:
        job, books = self._job, self._books
        asked = job.settings.tasks
        short = "; the set has no more" if isinstance(asked, int) and asked > job.available else ""
        self._talk.say(
            f"{self._title}: {len(job.tasks)} tasks, {books.planned} rollouts, "
            f"{job.settings.concurrency} at once{short}. Results go to {run.path}"
        )
        if job.settings.resume:
            self._talk.say(f"Resuming: {books.kept} rollouts are kept, {books.planned - books.kept} are to be done.")

    def _panel(self, evaluation: Evaluation) -> Panel:
        return panel(glance(self._title, evaluation, self._books, self._monitor))

    def _metrics(self, evaluation: Evaluation) -> Metrics:
        """The run's numbers, beside the process's own. Read in the pump's thread, so only plain counts."""
        metrics, books, pool = Metrics(), self._books, self._pool
        publish_health(metrics, self._monitor, self._trimmer)

        def collect() -> None:
            metrics.gauge("rollouts_finished", "Rollouts that finished, earlier sessions included.").set(books.finished)
            metrics.gauge("rollouts_failed", "Rollouts that failed and were not done again.").set(books.failed)
            metrics.gauge("rollouts_in_flight", "Rollouts that run now.").set(evaluation.in_flight)
            metrics.gauge("rollouts_per_second", "Since this session began.").set(books.done_now / books.elapsed_s)
            metrics.gauge("sampled_tokens", "Sampled in this session.").set(books.tokens_now)
            metrics.gauge("reward_mean", "So far.").set(books.reward_so_far or 0.0)
            for name, value in msgspec.structs.asdict(pool.stats()).items() if pool is not None else ():
                metrics.gauge(f"pool_{name}", "Of the pool of boxes.").set(value)

        metrics.collect_with(collect)
        return metrics

    def _concluded(self, run: RunDirectory, interrupted: bool) -> Result:
        job, books = self._job, self._books
        summary = books.summary(books.elapsed_s)
        short = summary.finished + summary.failed < summary.planned
        found = Result(job.taskset_name, job.settings.model, str(run.path), interrupted and short, books.kept, summary)
        run.write_summary(found.flat())
        return found

    def _conversations(self, path: Path) -> Iterator[str]:
        for trace in islice(read_traces(path), self._job.settings.show):
            yield conversation(trace)

    def _tell(self, found: Result) -> None:
        words = "\n\n".join([told(found, self._books), *self._conversations(Path(found.directory))])
        if self._job.settings.json:
            self._talk.say(words)
            result(msgspec.json.encode(found.flat()).decode())
        else:
            result(words)
