"""A bounded pool of renderers over one tokenizer engine.

A slot is a renderer. Slots share the engine, so a pool of 32 costs one tokenizer; the bound is on how much is rendered
at once, not on memory. Every slot has rendered and parsed a known conversation, as the others do, before anyone gets
it; a slot that did otherwise is thrown away and built anew, and the pool is not made if that does not help.

Slots are built one after the other. ROLLWRIGHT_POOL_INIT_WORKERS builds that many at once, within 1 to 8 and never more
than there are slots; a value that makes no sense means 1.

`render`, `extend` and `parse` do small jobs at once, where a thread would cost more than the job, and hand large ones
to a few threads of the pool, since encoding lets go of the GIL. `lease` and `leased` give a slot to whoever wants more.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import ParamSpec, TypeVar

import msgspec

from rollwright.wire import EngineUnavailable, Event, Message, ToolSpec, UsageError
from rollwright.wire.arrays import Ids

from .contract import Declined, Renderer
from .proof import Proof, text_size
from .tape import Tape

INIT_WORKERS_VARIABLE = "ROLLWRIGHT_POOL_INIT_WORKERS"
_MAX_INIT_WORKERS = 8
_BUILD_TRIES = 3
_MAX_THREADS = 4
# Characters that are encoded within about two milliseconds. fastokens holds the GIL: a thread is no help to the loop.
_INLINE_CHARS = {"tokenizers": 4096, "tiktoken": 16384, "fastokens": 131072}
_INLINE_IDS = 4096

P = ParamSpec("P")
T = TypeVar("T")


class PoolStats(msgspec.Struct, frozen=True):
    """What a pool did and does."""

    size: int
    idle: int
    waiting: int
    leases: int
    """Slots handed out so far."""
    inline: int
    """Jobs that were done at once."""
    threaded: int
    """Jobs that went to a thread."""
    rejected: int
    """Slots that failed their proof and were thrown away."""
    refused: int
    """Callers that were turned away: too many waited, or a wait took too long."""


class RendererPool:
    """Slots for rendering. Any thread and any loop may use it."""

    def __init__(
        self, make: Callable[[], Renderer], *, size: int = 32, max_waiting: int = 16384, wait_timeout_s: float = 60.0
    ) -> None:
        """Builds and proves all slots, which blocks while the first of them loads its tokenizer."""
        if size < 1 or max_waiting < 0 or not wait_timeout_s > 0:
            raise UsageError("a renderer pool needs a size and a wait_timeout_s of more than 0")
        self.size = size
        self.wait_timeout_s = wait_timeout_s
        self._max_waiting = max_waiting
        self._lock = threading.Lock()
        self._waiting: deque[Future[Renderer]] = deque()
        self._closed = False
        self._leases = self._inline = self._threaded = self._rejected = self._refused = 0
        slots = self._build(make)
        self.renderer = slots[0]
        """For what needs no slot: the stop ids, the family, a parser."""
        self._idle = slots
        self._inline_chars = _INLINE_CHARS.get(self.renderer.engine.kind, 4096)
        self._threads = ThreadPoolExecutor(min(size, _MAX_THREADS), thread_name_prefix="renderer")

    def __repr__(self) -> str:
        now = self.stats
        return f"<RendererPool {now.idle} idle, {now.size - now.idle} leased, {now.waiting} waiting>"

    @property
    def stats(self) -> PoolStats:
        with self._lock:
            counts = (self._leases, self._inline, self._threaded, self._rejected, self._refused)
            return PoolStats(self.size, len(self._idle), len(self._waiting), *counts)

    # Jobs.

    async def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Tape:
        async with self.leased() as renderer:
            large = text_size(messages, tools) > self._inline_chars
            return await self._do(large, renderer.render, messages, tools)

    async def extend(
        self, tape: Tape, messages: Sequence[Message], tools: Sequence[ToolSpec] | None = None
    ) -> Tape | Declined:
        async with self.leased() as renderer:
            large = text_size(messages, ()) > self._inline_chars
            return await self._do(large, renderer.extend, tape, messages, tools)

    async def parse(self, tape: Tape, ids: Ids, *, cut: bool = False) -> list[Event]:
        """The events of a whole answer to `tape`."""
        async with self.leased() as renderer:
            return await self._do(len(ids) > _INLINE_IDS, _parsed, renderer, tape, ids, cut)

    async def _do(self, large: bool, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        with self._lock:
            self._inline += not large
            self._threaded += large
        if not large:
            return job(*args, **kwargs)
        work = asyncio.get_running_loop().run_in_executor(self._threads, partial(job, *args, **kwargs))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # The slot goes back when the thread is done with it, which no cancellation can hasten.
            await asyncio.wait([work])
            raise

    # Slots.

    @asynccontextmanager
    async def leased(self) -> AsyncIterator[Renderer]:
        """A slot for a block of async code; EngineUnavailable if none comes free in time."""
        slot = self._ask()
        if not slot.done():
            try:
                async with asyncio.timeout(self.wait_timeout_s):
                    await asyncio.wrap_future(slot)
            except BaseException as error:
                self._give_up(slot)
                raise self._late(error) from error
        renderer = self._taken(slot)
        try:
            yield renderer
        finally:
            self._give_back(renderer)

    @contextmanager
    def lease(self) -> Iterator[Renderer]:
        """A slot for a block of plain code in any thread."""
        slot = self._ask()
        try:
            slot.exception(self.wait_timeout_s)
        except BaseException as error:
            self._give_up(slot)
            raise self._late(error) from error
        renderer = self._taken(slot)
        try:
            yield renderer
        finally:
            self._give_back(renderer)

    def close(self) -> None:
        """Idempotent. Whoever waits is turned away; jobs that run come to their end."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
        for slot in waiting:
            if slot.set_running_or_notify_cancel():
                slot.set_exception(_closed())
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask(self) -> Future[Renderer]:
        slot: Future[Renderer] = Future()
        with self._lock:
            if self._closed:
                raise _closed()
            if self._idle:
                slot.set_result(self._idle.pop())
            elif len(self._waiting) >= self._max_waiting:
                self._refused += 1
                text = f"{len(self._waiting)} callers wait for the {self.size} renderers already"
                raise EngineUnavailable(f"{text}; lower the concurrency or raise the pool's size")
            else:
                self._waiting.append(slot)
        return slot

    def _taken(self, slot: Future[Renderer]) -> Renderer:
        renderer = slot.result(0)
        with self._lock:
            self._leases += 1
        return renderer

    def _give_back(self, renderer: Renderer) -> None:
        with self._lock:
            while self._waiting:
                slot = self._waiting.popleft()
                if slot.set_running_or_notify_cancel():
                    slot.set_result(renderer)
                    return
            self._idle.append(renderer)

    def _give_up(self, slot: Future[Renderer]) -> None:
        """Leave the queue; a slot that came at the same moment goes on to the next."""
        with self._lock:
            if slot in self._waiting:
                self._waiting.remove(slot)
        if slot.done() and not slot.cancelled() and slot.exception() is None:
            self._give_back(slot.result())

    def _late(self, error: BaseException) -> BaseException:
        if not isinstance(error, TimeoutError):
            return error
        with self._lock:
            self._refused += 1
        text = f"no renderer came free within {self.wait_timeout_s:g} s"
        return EngineUnavailable(f"{text}; lower the concurrency or raise the pool's size")

    # Building.

    def _build(self, make: Callable[[], Renderer]) -> list[Renderer]:
        """The first slot is held against the tokenizer itself, the others against the first."""
        first, proof = self._tried(lambda: _first(make))
        rest, workers = range(1, self.size), init_workers(self.size)
        if workers == 1:
            return [first, *(self._tried(lambda: proof.proven(make())) for _ in rest)]
        with ThreadPoolExecutor(workers, thread_name_prefix="renderer-init") as threads:
            return [first, *threads.map(lambda _: self._tried(lambda: proof.proven(make())), rest)]

    def _tried(self, build: Callable[[], T]) -> T:
        failure: Exception | None = None
        for _ in range(_BUILD_TRIES):
            try:
                return build()
            except Exception as error:  # Whatever a poisoned slot raises, it is the slot that goes.
                failure = error
                with self._lock:
                    self._rejected += 1
        raise UsageError(f"a renderer failed its proof {_BUILD_TRIES} times: {failure}") from failure


def _first(make: Callable[[], Renderer]) -> tuple[Renderer, Proof]:
    renderer = make()
    return renderer, Proof(renderer)


def init_workers(size: int) -> int:
    """How many slots are built at once."""
    try:
        asked = int(os.environ.get(INIT_WORKERS_VARIABLE, "1"))
    except ValueError:
        return 1
    return min(asked, size, _MAX_INIT_WORKERS) if asked > 0 else 1


def _parsed(renderer: Renderer, tape: Tape, ids: Ids, cut: bool) -> list[Event]:
    parser = renderer.parser(tape)
    events: list[Event] = [*parser.feed(ids)]
    return events + parser.end(cut=cut)


def _closed() -> EngineUnavailable:
    return EngineUnavailable("the renderer pool was closed")
