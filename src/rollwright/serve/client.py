"""EnvClient: a served environment as it looks from elsewhere. It has the same verbs as one served in this process.

Every request has a deadline and ends: with traces, with a Unserved that says why it has none, or with ServerLost
where nobody is left to serve any. When the broker dies and is born again within `patience_s`, what was asked of it is
asked again; nothing is delivered twice, because the answers of an earlier life are addressed to numbers that nobody
waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from rollwright.tasks import Task, hooks_of
from rollwright.wire import Trace, UsageError, WireError
from rollwright.wire.codec import Buffer, decode, encode

from .link import Link
from .parcels import Parcel, Parcels, size_of
from .pending import Came, Pending
from .protocol import (
    Ask,
    Cancel,
    Done,
    Ending,
    Failed,
    Job,
    Part,
    ServerLost,
    Submit,
    Told,
    Trouble,
    Unserved,
    Voided,
    Withdraw,
    failure_of,
)
from .shelf import ShelfLost
from .window import Window
from .wiring import Address

DEFAULT_TIMEOUT_S = 3600.0
OVERLOADED_PAUSE_S = 0.2
BUDGET_BYTES = 8 * 2**30
MAX_REFETCHES = 5
OnTrace = Callable[[Trace], None]


class EnvClient:
    """`async with EnvClient(address) as environment: trace = await environment.run(task)`."""

    def __init__(
        self,
        address: Address | str,
        *,
        patience_s: float = 30.0,
        ready_timeout_s: float = 120.0,
        budget_bytes: int = BUDGET_BYTES,
    ) -> None:
        """`patience_s` is how long a silent broker may take to be born again. `budget_bytes` bounds the traces that
        have come and that the caller has not taken yet: beyond it the server begins nothing more for this client until
        half of it was taken. What was begun goes on, so a group that is larger still comes back whole."""
        where = Address.decode(address) if isinstance(address, str) else address
        self._link = Link(where, self._heard, self._resubmit, self._fail_all, patience_s, budget_bytes)
        self._parcels = Parcels(lambda parcel: parcel.said.request in self._pending, self._came)
        self._ready_timeout_s = ready_timeout_s
        self._window = Window(1)
        self._pending: dict[int, Pending] = {}
        self._turned_away: set[Pending] = set()
        """Requests that the broker had no room for; they are sent again."""
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._next = 0
        self._closed = False
        self._policy = 0

    def __repr__(self) -> str:
        return f"<EnvClient {len(self._pending)} requests pending, {self._window!r}>"

    async def __aenter__(self) -> Self:
        await self.connect()
        try:
            await self._link.until_ready(self._ready_timeout_s)
        except BaseException:
            await self.close()
            raise
        self._open_window()
        return self

    @property
    def refused(self) -> bool:
        """Whether the server has turned us away."""
        return bool(self._link.refused)

    async def connect(self) -> None:
        """Open the line without waiting for a worker: enough to give orders."""
        await self._link.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """What is pending fails now. Idempotent."""
        if not self._closed:
            self._closed = True
            self._fail_all("the client was closed")
            await self._parcels.close()
            await self._link.close()

    async def run(self, task: Task, attempt: int = 0, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Trace:
        """One rollout. A failed one is a trace with a failure; Unserved if none came back."""
        (trace,) = await self.run_attempts(task, [attempt], timeout_s=timeout_s)
        return trace

    async def run_group(
        self,
        task: Task,
        n: int,
        *,
        first_attempt: int = 0,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        on_trace: OnTrace | None = None,
    ) -> list[Trace]:
        """`n` rollouts of one task, in one worker, scored together where the task asks for it."""
        attempts = range(first_attempt, first_attempt + n)
        return await self.run_attempts(task, attempts, timeout_s=timeout_s, on_trace=on_trace)

    async def stream_group(
        self, task: Task, n: int, *, first_attempt: int = 0, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> AsyncGenerator[Trace, None]:
        """The group's traces as they finish, before they are scored together. Closing this early cancels the rest.
        After the death of a worker a trace may come again, as another run of the same attempt."""
        # Its size is that of the group, and its bytes count against the budget until they are taken.
        arrived: asyncio.Queue[tuple[Trace, int, int]] = asyncio.Queue()

        def came(trace: Trace, size: int) -> None:
            arrived.put_nowait((trace, size, self._link.life))

        attempts = range(first_attempt, first_attempt + n)
        running = asyncio.create_task(self._run(task, attempts, (), timeout_s, came))
        try:
            while not running.done() or not arrived.empty():
                getting = asyncio.ensure_future(arrived.get())
                await asyncio.wait({getting, running}, return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    trace, size, life = getting.result()
                    self._link.took(size, life)
                    yield trace
                else:
                    getting.cancel()
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            while not arrived.empty():
                _, size, life = arrived.get_nowait()
                self._link.took(size, life)

    async def run_attempts(
        self,
        task: Task,
        attempts: Sequence[int],
        earlier: Sequence[Trace] = (),
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        on_trace: OnTrace | None = None,
    ) -> list[Trace]:
        """The given attempts at one task, as `Serving.run_attempts`. Waiting for room counts as well."""

        def told(trace: Trace, size: int) -> None:
            self._link.took(size, self._link.life)
            if on_trace is not None:
                on_trace(trace)

        return await self._run(task, attempts, earlier, timeout_s, told if on_trace is not None else None)

    async def _run(
        self, task: Task, attempts: Sequence[int], earlier: Sequence[Trace], timeout_s: float, came: Came | None
    ) -> list[Trace]:
        if self._closed:
            raise ServerLost("the client was closed")
        if not timeout_s > 0:
            raise UsageError(f"timeout_s is {timeout_s}; a deadline lies in the future")
        job = Job(task.id, tuple(attempts), tuple(earlier))
        together = bool(hooks_of(type(task)).group_rewards)
        deadline = asyncio.get_running_loop().time() + timeout_s
        if not self._window.try_enter(len(attempts)):
            await self._wait_for_room(task.id, len(attempts), deadline, timeout_s)
        try:
            return await self._ask_for(task.id, job, together, deadline, came)
        finally:
            self._window.leave(len(attempts))

    async def _wait_for_room(self, label: str, weight: int, deadline: float, timeout_s: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._window.enter(weight)
        except TimeoutError as error:
            raise Unserved(f"{label} found no room within {timeout_s:g} s", Trouble.OVERLOADED) from error

    async def _ask_for(self, label: str, job: Job, together: bool, deadline: float, came: Came | None) -> list[Trace]:
        left_s = max(deadline - asyncio.get_running_loop().time(), 0.001)
        asked = Submit(0, len(job.attempts), label[:500], left_s, "", together=together)
        pending = Pending(job, asked, encode(job), came)
        self._submit(pending)
        try:
            # The broker keeps the deadline; this one is for a broker that does not.
            async with asyncio.timeout(left_s + 10.0):
                return await pending.over
        except TimeoutError as error:
            raise Unserved(f"{label} was not answered within {left_s:g} s", Trouble.TIMED_OUT) from error
        finally:
            self._let_go(pending)
            self._turned_away.discard(pending)
            if self._pending.pop(pending.asked.request, None) is not None and not self._closed:
                self._link.send(Cancel(pending.asked.request))

    def cancel_rollout(self, task: Task, attempt: int) -> bool:
        """End one rollout; the others of its group go on, and its trace says that it was cancelled. False if it was
        not asked for, or has come back."""
        for pending in (*self._pending.values(), *self._turned_away):
            if pending.task_id == task.id and attempt in pending.attempts:
                position = pending.attempts.index(attempt)
                if position in pending.traces:
                    return False
                pending.withdrawn.add(position)
                if pending not in self._turned_away:
                    self._link.send(Withdraw(pending.asked.request, position))
                return True
        return False

    async def tell_policy(self, version: int, *, timeout_s: float = 60.0) -> None:
        """The engines serve this policy version from now on; workers mark the calls that begin later with it, where
        the engine itself does not tell. A broker that is born again meanwhile, or later, is told again."""
        self._policy = version
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            try:
                await self.ask("policy", str(version), timeout_s=5.0)
                return
            except Unserved:
                if asyncio.get_running_loop().time() >= deadline:
                    raise

    async def ask(self, verb: str, value: str = "", *, timeout_s: float = 10.0) -> Any:
        """An order to the server; its answer is what `rollwright ctl` prints."""
        number = self._number()
        self._questions[number] = answer = asyncio.get_running_loop().create_future()
        self._link.send(Ask(number, verb, value))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            raise Unserved(f"the server did not answer {verb!r} within {timeout_s:g} s") from error
        finally:
            del self._questions[number]

    # What the link tells

    def _heard(self, said: Any, frames: Sequence[Buffer]) -> None:
        if isinstance(said, Told):
            self._told(said, frames)
            return
        size = size_of(said, frames)
        self._link.read(size)
        self._parcels.put(Parcel(said, frames, size, self._link.life))

    def _came(self, parcel: Parcel) -> None:
        pending = self._pending.get(parcel.said.request)
        if pending is None:
            self._link.took(parcel.size, parcel.life)
            return
        pending.held_bytes += parcel.size
        try:
            if parcel.trouble is not None:
                raise parcel.trouble
            self._apply(pending, parcel)
        except ShelfLost as error:
            self._fetch_again(pending, error)
        except WireError as error:
            self._forget(pending)
            pending.fail(Unserved(f"{pending.asked.label} came back damaged: {error}"))
            self._link.send(Cancel(parcel.said.request))
        except (
            Exception
        ) as error:  # The border to the caller's listener: what it raises is its own, and ends its request.
            self._forget(pending)
            pending.fail(error)
            self._link.send(Cancel(parcel.said.request))

    def _apply(self, pending: Pending, parcel: Parcel) -> None:
        said = parcel.said
        if isinstance(said, Part):
            pending.part(said.position, decode(parcel.frames, Trace), parcel.size)
            if said.last:
                pending.done(Ending())
                self._forget(pending)
        elif isinstance(said, Done):
            pending.done(decode(parcel.frames, Ending))
            self._forget(pending)
        elif isinstance(said, Voided):
            self._let_go(pending)
        elif isinstance(said, Failed):
            self._failed(pending, said)

    def _failed(self, pending: Pending, said: Failed) -> None:
        self._forget(pending)
        if said.trouble is Trouble.OVERLOADED:
            self._turned_away.add(pending)
            asyncio.get_running_loop().call_later(OVERLOADED_PAUSE_S, self._ask_again, pending)
        else:
            pending.fail(failure_of(said))

    def _fetch_again(self, pending: Pending, error: ShelfLost) -> None:
        """A worker died before we had looked into its shelf, or this machine does not let us: run it again, in the end
        with results that come over the socket."""
        self._forget(pending)
        self._link.send(Cancel(pending.asked.request))
        if self._parcels.hopeless and self._link.place:
            self._link.place = ""
            self._link.hello()
        pending.refetched += 1
        if pending.refetched > MAX_REFETCHES:
            pending.fail(Unserved(f"{pending.asked.label} was lost: {error}", Trouble.WORKER_LOST))
        else:
            self._let_go(pending)
            self._submit(pending)

    def _let_go(self, pending: Pending) -> None:
        """The traces that came of it are with the caller, or are not wanted."""
        self._link.took(pending.forget_parts(), pending.life)

    def _ask_again(self, pending: Pending) -> None:
        """The broker had no room, which others took; whoever still waits for the answer waits for room too."""
        if pending in self._turned_away:
            self._turned_away.discard(pending)
            self._submit(pending)

    def _told(self, said: Told, frames: Sequence[Buffer]) -> None:
        answer = self._questions.get(said.question)
        if answer is None or answer.done():
            return
        if said.error:
            answer.set_exception(Unserved(said.error, Trouble.REFUSED))
        else:
            answer.set_result(msgspec.json.decode(frames[0]))

    def _resubmit(self) -> None:
        """The broker was born again and knows of nothing."""
        self._open_window()
        if self._policy:
            self._link.send(Ask(self._number(), "policy", str(self._policy)))
        for pending in list(self._pending.values()):
            self._forget(pending)
            pending.forget_parts()
            self._submit(pending)

    def _fail_all(self, why: str) -> None:
        for pending in (*self._pending.values(), *self._turned_away):
            self._forget(pending)
            pending.fail(ServerLost(f"{pending.asked.label} was lost: {why}"))

    def _submit(self, pending: Pending) -> None:
        welcome = self._link.welcome
        assert welcome is not None
        pending.asked = msgspec.structs.replace(pending.asked, request=self._number(), broker=welcome.broker)
        pending.life = self._link.life
        self._pending[pending.asked.request] = pending
        self._link.send(pending.asked, pending.frames)
        for position in sorted(pending.withdrawn):
            self._link.send(Withdraw(pending.asked.request, position))

    def _forget(self, pending: Pending) -> None:
        self._turned_away.discard(pending)
        self._pending.pop(pending.asked.request, None)

    def _open_window(self) -> None:
        assert self._link.welcome is not None
        self._window.size = self._link.welcome.window
        self._window.admit()

    def _number(self) -> int:
        self._next += 1
        return self._next
