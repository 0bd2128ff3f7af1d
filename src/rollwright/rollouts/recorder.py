"""Finished rollouts on their way to disk: a bounded queue, one thread, one sync for all that arrived meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self

from rollwright.traces import RunDirectory
from rollwright.wire import Trace

_Entry = tuple[Sequence[Trace], asyncio.Future[None]]


class Recorder:
    """`record` returns when the traces are on disk. A disk that refuses is the caller's exception."""

    def __init__(self, run: RunDirectory, *, waiting: int = 1024) -> None:
        self._run = run
        self._queue: asyncio.Queue[_Entry] = asyncio.Queue(maxsize=waiting)
        self._writer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._writer = asyncio.create_task(self._write(), name="recorder")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._writer is not None
        await self._queue.join()
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)

    async def record(self, traces: Sequence[Trace]) -> None:
        written = asyncio.get_running_loop().create_future()
        await self._queue.put((traces, written))
        # A caller that is cancelled here no longer waits; what it handed over is still written.
        await asyncio.shield(written)

    async def _write(self) -> None:
        while True:
            entries = [await self._queue.get()]
            while not self._queue.empty():
                entries.append(self._queue.get_nowait())
            await self._write_together(entries)

    async def _write_together(self, entries: Sequence[_Entry]) -> None:
        traces = [trace for some, _ in entries for trace in some]
        try:
            await asyncio.to_thread(self._run.append, traces)
        except (OSError, ValueError) as error:
            for _, written in entries:
                written.set_exception(error)
        else:
            for _, written in entries:
                written.set_result(None)
        finally:
            for _ in entries:
                self._queue.task_done()
