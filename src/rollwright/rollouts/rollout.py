"""One rollout: a box if one is needed, setup, the harness, the rewards. Its failure is its own.

Whatever goes wrong is attributed to one layer and put on the trace; only a cancellation leaves here as an exception.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import msgspec

from rollwright.harnesses import Door, Harness, Limits, Session, Surroundings, guard_of
from rollwright.intercept import Interceptor
from rollwright.runtimes import Runtime, shielded
from rollwright.tasks import Hook, Hooks, Task, Toolbox, Toolset, call_hook, call_scores, hooks_of, leave_all
from rollwright.traces import LiveTrace, Phase
from rollwright.wire import Failure, HarnessError, RolloutError, Score, Stop, TaskBroken, Trace

from .metered import MeteredRuntime

T = TypeVar("T")
CLEANUP_S = 30.0

log = logging.getLogger("rollwright.rollouts")


class Finished(msgspec.Struct, frozen=True):
    """A rollout that ended, with what the group stage may still ask for."""

    trace: Trace
    state: dict[str, Any]


class Rollout:
    """One attempt at one task. `box` gives the runtime for its duration within deadlines of its own, or is None if none
    is needed; `interceptor` lets its program in, if that makes model calls of its own."""

    def __init__(
        self,
        task: Task,
        trace: LiveTrace,
        session: Session,
        harness: Harness,
        limits: Limits,
        box: AbstractAsyncContextManager[Runtime] | None,
        interceptor: Interceptor | None = None,
        toolsets: Sequence[Toolset] = (),
    ) -> None:
        self._task = task
        self._hooks: Hooks = hooks_of(type(task))
        self._trace = trace
        self._session = session
        self._harness = harness
        self._limits = limits
        self._box = box
        self._interceptor = interceptor
        self._toolsets = toolsets
        self._state: dict[str, Any] = {}
        self._supplies: dict[str, Any] = {"state": self._state}

    async def run(self) -> Finished:
        self._trace.info = dict(self._task.info)
        stop, scores, failure = Stop.FAILED, dict[str, Score](), None
        try:
            async with self._equipped() as tools, self._boxed():
                stop = await self._converse(tools)
                scores = await self._score(stop)
        except RolloutError as error:
            stop, scores, failure = Stop.FAILED, {}, Failure.of(error)
            log.debug("%s#%d failed: %s", self._task.id, self._trace.attempt, error)
        trace = self._trace.freeze(stop, scores=scores, reward=weighted(scores), failure=failure)
        return Finished(trace, self._state)

    @asynccontextmanager
    async def _equipped(self) -> AsyncIterator[Toolbox]:
        tools = Toolbox(self._task, self._toolsets, self._supplied, lambda: self._session.images)
        if not self._harness.needs_door:
            # A program shows its model tools of its own, under names of its own; each of its calls tells them.
            self._trace.tools = tools.specs
        try:
            yield tools
        finally:
            if self._toolsets:
                await shielded(leave_all(self._toolsets, tools.rollout), within_s=CLEANUP_S)

    @asynccontextmanager
    async def _boxed(self) -> AsyncIterator[None]:
        if self._box is None:
            yield
            return
        with self._trace.phase(Phase.PROVISION):
            # Its deadlines are the box's own: waiting for a pooled one is not making one.
            runtime = await self._box.__aenter__()
        self._trace.runtime = runtime.name
        self._supplies["runtime"] = MeteredRuntime(runtime, self._trace)
        try:
            yield
        finally:
            await shielded(self._release(), within_s=CLEANUP_S)

    async def _release(self) -> None:
        assert self._box is not None
        await self._box.__aexit__(None, None, None)

    async def _converse(self, tools: Toolbox) -> Stop:
        with self._trace.phase(Phase.SETUP):
            await self._hook(self._hooks.setup, self._limits.setup_timeout_s, "setup")
        try:
            stop = await self._drive(tools)
        except HarnessError:
            # A program whose call was refused or failed may well break over it. That is not where it began.
            if self._session.broken is None and self._session.stopped is None:
                raise
            stop = Stop.FINISHED
        if self._session.broken is not None:
            raise self._session.broken
        return self._session.stopped or stop if stop is Stop.FINISHED else stop

    async def _drive(self, tools: Toolbox) -> Stop:
        try:
            async with asyncio.timeout(self._limits.timeout_s) as clock, self._door(tools) as door:
                around = Surroundings(self._task, self._hooks, self._trace, self._supplies, tools, door)
                self._session.guard = guard_of(around)
                return await self._harness.run(self._session, around)
        except TimeoutError as error:
            if clock.expired():
                return Stop.TIME_SPENT
            raise HarnessError(f"the harness gave up waiting: {error}") from error
        except RolloutError:
            raise
        except Exception as error:
            raise HarnessError(f"the harness raised {type(error).__name__}: {error}") from error

    @asynccontextmanager
    async def _door(self, tools: Toolbox) -> AsyncIterator[Door | None]:
        """Where the program finds its model, as seen from where it runs. Afterwards no call of it is open."""
        if self._interceptor is None:
            yield None
            return
        runtime: Runtime | None = self._supplies.get("runtime")
        url = await runtime.forward(self._interceptor.port) if runtime and self._harness.needs_runtime else ""
        admitted = self._interceptor.admit(self._session, url=url, state=self._state, tools=tools)
        async with admitted as door:
            yield door

    async def _score(self, stop: Stop) -> dict[str, Score]:
        with self._trace.phase(Phase.SCORE):
            await self._hook(self._hooks.finalize, self._limits.score_timeout_s, "finalize")
            scoring = (*self._hooks.rewards, *self._hooks.metrics)
            if not scoring:
                return {}
            trace = self._trace.freeze(stop)
            supplies = {**self._supplies, "trace": trace, "reply": trace.reply}
            scores = call_scores(scoring, self._task, supplies)
            return await within(self._limits.score_timeout_s, scores, TaskBroken, "scoring")

    async def _hook(self, hook: Hook | None, timeout_s: float, what: str) -> None:
        if hook is not None:
            await within(timeout_s, call_hook(hook, self._task, self._supplied()), TaskBroken, what)

    def _supplied(self) -> dict[str, Any]:
        """What hooks may ask for, as of now."""
        return {**self._supplies, "trace": self._trace, "reply": self._trace.reply}


def weighted(scores: dict[str, Score]) -> float:
    return sum(score.value * score.weight for score in scores.values())


async def within(timeout_s: float, work: Awaitable[T], kind: type[RolloutError], what: str) -> T:
    """`work`, or an error of `kind` if it takes longer than it may."""
    try:
        async with asyncio.timeout(timeout_s) as clock:
            return await work
    except TimeoutError as error:
        if clock.expired():
            raise kind(f"{what} took longer than {timeout_s:g} s") from error
        raise
