"""One call while it runs: driven by the request that began it, followed by those that repeat it.

The request that begins a call also carries it, so a call costs no task of its own. If that client leaves, the call may
go on for the sake of others: of followers, or of the same client, which is of a kind that comes back. Nothing here
awaits but the followers.
"""

from __future__ import annotations

import asyncio

from rollwright.engines import Ear
from rollwright.harnesses import Refusal
from rollwright.wire import End, Event, ModelCall, ModelReply, RolloutError, end_of

from .keys import Mark

Outcome = ModelReply | Refusal | RolloutError


class Exchange:
    def __init__(self, call: ModelCall, mark: Mark, task: asyncio.Task[object]) -> None:
        self.call = call
        """As it was received."""
        self.mark = mark
        self.events: list[Event] = []
        """What was streamed so far, for those who join late."""
        self.outcome: Outcome | None = None
        self.deserted = False
        """The client that began it is gone."""
        self.followers = 0
        self._task = task
        self._changed: asyncio.Future[None] | None = None
        self._reaper: asyncio.TimerHandle | None = None

    # For the request that drives it.

    def grown(self) -> None:
        """Another event was streamed."""
        if self._changed is not None:
            self._tell()

    def settle(self, outcome: Outcome) -> None:
        """Nothing more comes. The first outcome stays."""
        if self.outcome is None:
            self.outcome = outcome
            if self._changed is not None:
                self._tell()
        if self._reaper is not None:
            self._reaper.cancel()
            self._reaper = None

    def left(self, grace_s: float) -> None:
        """The client that began it is gone."""
        self.deserted = True
        if self.outcome is not None or self.followers:
            return
        # SDKs do not ask again for a stream that broke after its beginning.
        if self.mark.comes_back and not self.events and grace_s:
            self._reaper = asyncio.get_running_loop().call_later(grace_s, self._reap)
        else:
            self._task.cancel()

    # For requests that repeat it.

    async def follow(self, ear: Ear) -> End | Refusal:
        """Tell its events from the first one on. RolloutError if it fails."""
        told = 0
        async with _Following(self):
            while True:
                while told < len(self.events):
                    event = self.events[told]
                    if isinstance(event, End):
                        return event
                    told += 1
                    if not ear.hear(event):
                        await ear.ready()
                if isinstance(self.outcome, RolloutError):
                    raise self.outcome
                if isinstance(self.outcome, Refusal):
                    return self.outcome
                if self.outcome is not None:
                    return end_of(self.outcome)
                await self._news()

    async def answer(self) -> ModelReply | Refusal:
        """The whole answer. RolloutError if there is none."""
        async with _Following(self):
            while self.outcome is None:
                await self._news()
            if isinstance(self.outcome, RolloutError):
                raise self.outcome
            return self.outcome

    def unfollowed(self) -> None:
        self.followers -= 1
        if self.deserted and self._reaper is None:
            self._reap()

    async def _news(self) -> None:
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        # Shielded, because all followers wait for the same future and one of them may be cancelled.
        await asyncio.shield(self._changed)

    def _tell(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None

    def _reap(self) -> None:
        self._reaper = None
        if self.outcome is None and not self.followers:
            self._task.cancel()


class _Following:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def __aenter__(self) -> None:
        self._exchange.followers += 1

    async def __aexit__(self, *_: object) -> None:
        self._exchange.unfollowed()
