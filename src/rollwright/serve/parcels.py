"""Results on their way to a client's requests: what lies on a shelf is fetched first, in a thread.

They are handed over in the order in which they came, so whatever comes while one is fetched waits behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rollwright.wire import WireError
from rollwright.wire.codec import Buffer

from .protocol import Done, Part
from .shelf import UNUSED_S, ShelfLost, Shelves

MAX_STRIKES = 3
"""So many in a row that could not be fetched, and frames are to come over the socket."""


@dataclass(slots=True)
class Parcel:
    said: Any
    frames: Sequence[Buffer]
    size: int
    """Bytes of the result, wherever they lie."""
    life: int
    """Of the link, when it came."""
    trouble: ShelfLost | WireError | None = None
    """Why its frames could not be had."""


def size_of(said: Any, frames: Sequence[Buffer]) -> int:
    if not isinstance(said, Part | Done):
        return 0
    return sum(len(frame) for frame in frames) + (said.laid.size if said.laid is not None else 0)


class Parcels:
    """`wanted` says whether anybody still waits for a parcel; `hand_over` gets each, fetched or with its trouble."""

    def __init__(self, wanted: Callable[[Parcel], bool], hand_over: Callable[[Parcel], None]) -> None:
        self._wanted, self._hand_over = wanted, hand_over
        # As long as the shelves are large: nothing lies there that was not fetched.
        self._waiting: deque[Parcel] = deque()
        self._fetching: asyncio.Future[Sequence[Buffer]] | None = None
        self._shelves = Shelves()
        self._thread: ThreadPoolExecutor | None = None
        self._strikes = 0
        self._tidying: asyncio.TimerHandle | None = None

    @property
    def hopeless(self) -> bool:
        """Whether shelves are not to be used any more."""
        return self._strikes >= MAX_STRIKES

    def put(self, parcel: Parcel) -> None:
        self._waiting.append(parcel)
        if self._fetching is None:
            self._next()

    async def close(self) -> None:
        self._waiting.clear()
        if self._tidying is not None:
            self._tidying.cancel()
        if self._fetching is not None:
            await asyncio.wait({self._fetching})
        if self._thread is not None:
            # The memory of a dead worker is freed with the last look at it, which takes a while: not on the loop.
            self._thread.submit(self._shelves.leave_all)
            self._thread.shutdown(wait=False)

    def _next(self) -> None:
        """Hand over everything up to the next that must be fetched."""
        while self._waiting and self._fetching is None:
            parcel = self._waiting.popleft()
            laid = parcel.said.laid if isinstance(parcel.said, Part | Done) else None
            if laid is None:
                self._hand_over(parcel)
            elif self._wanted(parcel):
                self._fetch(parcel)
            else:
                self._shelves.leave(laid)
                self._hand_over(parcel)

    def _fetch(self, parcel: Parcel) -> None:
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollwright-shelves")
            self._tidying = loop.call_later(UNUSED_S, self._tidy)
        laid, now = parcel.said.laid, loop.time()
        self._fetching = loop.run_in_executor(self._thread, self._shelves.take, laid, parcel.frames, now)
        self._fetching.add_done_callback(lambda fetched: self._fetched(parcel, fetched))

    def _fetched(self, parcel: Parcel, fetched: asyncio.Future[Sequence[Buffer]]) -> None:
        self._fetching = None
        try:
            parcel.frames = fetched.result()
            self._strikes = 0
        except (ShelfLost, WireError) as error:
            parcel.trouble = error
            self._strikes += 1
        self._hand_over(parcel)
        self._next()

    def _tidy(self) -> None:
        loop = asyncio.get_running_loop()
        self._tidying = loop.call_later(UNUSED_S, self._tidy)
        if self._thread is not None:
            with contextlib.suppress(RuntimeError):  # It was closed meanwhile.
                self._thread.submit(self._shelves.leave_unused, loop.time())
