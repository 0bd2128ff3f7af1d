"""A taskset, a harness and a kind of box. `serving()` owns what outlives a rollout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from typing import Any

from rollwright.engines import Engine, prove_tokens
from rollwright.harnesses import ChatHarness, Harness, Limits, Session
from rollwright.intercept import InterceptConfig, Interceptor
from rollwright.runtimes import PoolConfig, Runtime, RuntimeConfig, RuntimePool, SubprocessConfig
from rollwright.tasks import GroupSettings, Task, Taskset, Toolset, hooks_of, opened
from rollwright.traces import LiveTrace
from rollwright.wire import Sampling, Stop, Trace

from .boxes import Ground, fresh_box, leased_box
from .groups import Member, score_group, seated
from .rollout import Finished, Rollout
from .sweeping import sweeping


class Environment:
    """What is rolled out, by which program, in which box, within which limits."""

    def __init__(
        self,
        taskset: Taskset,
        *,
        harness: Harness | None = None,
        runtime: RuntimeConfig | None = None,
        limits: Limits | None = None,
        pool: PoolConfig | None = None,
        intercept: InterceptConfig | None = None,
        toolsets: Sequence[Toolset] = (),
        group: GroupSettings | None = None,
    ) -> None:
        self.taskset = taskset
        self.harness: Harness = harness or ChatHarness()
        self.runtime: RuntimeConfig = runtime or SubprocessConfig()
        self.limits = limits or Limits()
        self.pool = pool or PoolConfig()
        self.intercept = intercept or InterceptConfig()
        self.group = group or GroupSettings()
        self.toolsets = tuple(toolsets)
        """Tools for every rollout, besides those that the taskset brings."""

    @asynccontextmanager
    async def serving(
        self, engine: Engine, model: str, *, sampling: Sampling | None = None, return_tokens: bool = False
    ) -> AsyncIterator[Serving]:
        """Run rollouts against `engine` until the block ends; then everything that was opened is closed.

        With `return_tokens` rollouts are to be trained on, so the engine proves first that it tells its tokens: if a
        router in between strips them, EngineRefused is raised before anything is opened. Boxes are pooled where
        `runtime.persistent` is true. What earlier processes left behind is freed meanwhile."""
        if return_tokens:
            await prove_tokens(engine, model)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(sweeping())
            pool = None
            if self.runtime.persistent:
                pool = await stack.enter_async_context(RuntimePool(self.pool))
                pool.expect(self.runtime)
            interceptor = None
            if self.harness.needs_door:
                interceptor = await stack.enter_async_context(Interceptor(self.intercept))
            toolsets = await stack.enter_async_context(opened(self._all_toolsets()))
            serving = Serving(self, engine, model, sampling or Sampling(), return_tokens, pool, interceptor, toolsets)
            stack.push_async_callback(serving.close)
            yield serving

    def _all_toolsets(self) -> tuple[Toolset, ...]:
        brought = self.taskset.toolsets() if isinstance(self.taskset, Taskset) else ()
        return (*brought, *self.toolsets)


class Serving:
    """Runs rollouts and groups. Made by `Environment.serving()`."""

    def __init__(
        self,
        environment: Environment,
        engine: Engine,
        model: str,
        sampling: Sampling,
        return_tokens: bool,
        pool: RuntimePool | None = None,
        interceptor: Interceptor | None = None,
        toolsets: Sequence[Toolset] = (),
    ) -> None:
        self._environment = environment
        self._engine = engine
        self._model = model
        self._sampling = sampling
        self._return_tokens = return_tokens
        self._running: set[asyncio.Task[Member]] = set()
        self._seats: dict[tuple[str, int], asyncio.Task[Member]] = {}
        self._cancelled: set[tuple[str, int]] = set()
        self._toolsets = toolsets
        self.policy_version = 0
        """What the engine serves now; see `tell_policy`."""
        self.pool = pool
        """Where boxes come from; None if each rollout has its own."""
        self.interceptor = interceptor
        """Where programs find their model; None if the harness runs none."""

    def __repr__(self) -> str:
        pool = f", {self.pool!r}" if self.pool is not None else ""
        return f"<Serving {type(self._environment.taskset).__name__}, {len(self._running)} rollouts in flight{pool}>"

    async def tell_policy(self, version: int) -> None:
        """The engine serves this policy version from now on. Answers of engines that do not tell theirs are marked with
        the version that was served when they were asked."""
        self.policy_version = version

    async def run(self, task: Task, attempt: int = 0) -> Trace:
        """One rollout. A failed one is a trace with a failure, not an exception."""
        (trace,) = await self.run_attempts(task, [attempt])
        return trace

    async def run_group(self, task: Task, n: int, *, first_attempt: int = 0) -> list[Trace]:
        """`n` rollouts of one task, scored together where the task asks for it."""
        return await self.run_attempts(task, range(first_attempt, first_attempt + n))

    async def run_attempts(
        self,
        task: Task,
        attempts: Sequence[int],
        earlier: Sequence[Trace] = (),
        on_trace: Callable[[Trace], None] | None = None,
    ) -> list[Trace]:
        """The given attempts at one task. Group rewards also see `earlier` traces of the group, whose own scores stand
        and whose state is empty. `on_trace` is told of each rollout as it ends, before the group is scored."""
        ground = Ground(task, self._environment.limits, self._environment.runtime)
        settings = self._environment.group
        together = bool(hooks_of(type(task)).group_rewards)
        retries = settings.retries if together and settings.partial == "wait" else 0

        async def seat(attempt: int) -> Member:
            member = await self._seated(
                task.id, attempt, seated(partial(self._rollout, ground, attempt), kept, retries)
            )
            if on_trace is not None:
                on_trace(member.trace)
            return member

        # What its rollouts keep outside of their traces, such as images, stays until the group is scored.
        with ExitStack() as kept:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(seat(n), name=f"{task.id}#{n}") for n in attempts]
                for rollout in running:
                    self._running.add(rollout)
                    rollout.add_done_callback(self._running.discard)
            members = [rollout.result() for rollout in running]
            return await score_group(task, members, earlier, settings, ground.limits)

    def cancel_rollout(self, task: Task, attempt: int) -> bool:
        """End one rollout; the others of its group go on, and its trace says that it was cancelled. False if it is not
        running."""
        key = task.id, attempt
        if key not in self._seats:
            return False
        self._cancelled.add(key)
        self._seats[key].cancel()
        return True

    async def _seated(self, task_id: str, attempt: int, rollout: Coroutine[Any, Any, Member]) -> Member:
        key, seat = (task_id, attempt), asyncio.current_task()
        assert seat is not None
        self._seats[key] = seat
        try:
            return await rollout
        except asyncio.CancelledError:
            # Whoever cancels the whole group at the same moment wins.
            if key not in self._cancelled or seat.uncancel():
                raise
            return Member(Trace(task_id, attempt, stop=Stop.CANCELLED, trainable=False), {})
        finally:
            self._cancelled.discard(key)
            self._seats.pop(key, None)

    async def close(self) -> None:
        """End what is still running. Idempotent."""
        running = list(self._running)
        for rollout in running:
            rollout.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _rollout(self, ground: Ground, attempt: int, kept: ExitStack) -> tuple[Finished, Session | None]:
        trace = LiveTrace(ground.task.id, attempt, policy_version=lambda: self.policy_version)
        if ground.broken is not None:
            return Finished(trace.freeze(Stop.FAILED, failure=ground.broken), {}), None
        session = Session(
            self._engine,
            trace,
            model=self._model,
            sampling=self._sampling,
            limits=ground.limits,
            return_tokens=self._return_tokens,
        )
        kept.callback(session.close)
        harness, box = self._environment.harness, self._box(ground, trace) if self._needs_box(ground.task) else None
        rollout = Rollout(ground.task, trace, session, harness, ground.limits, box, self.interceptor, self._toolsets)
        return await rollout.run(), session

    def _needs_box(self, task: Task) -> bool:
        tools = any(toolset.needs_runtime for toolset in self._toolsets)
        return tools or self._environment.harness.needs_runtime or hooks_of(type(task)).needs_runtime

    def _box(self, ground: Ground, trace: LiveTrace) -> AbstractAsyncContextManager[Runtime]:
        if self.pool is None:
            return fresh_box(ground, self._environment.limits.setup_timeout_s)
        return leased_box(ground, self.pool, trace)
