"""A rollout at the door: its secrets, its calls that run, and the answers that it may ask for again.

Everything that the interceptor holds for a rollout hangs here, so letting go of it costs its own entries and nothing
else. Sealing ends every request of the rollout, read or waiting, and the engine's work for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from rollwright.dialects import Tails
from rollwright.harnesses import Session, Turn
from rollwright.wire import Message, ModelCall, ModelReply

from .exchange import Exchange
from .keys import Mark, new_secret

log = logging.getLogger("rollwright.intercept")

SEAL_S = 5.0
"""How long the requests of a rollout that ends may take to notice."""

StateRoute = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Kept(msgspec.Struct, frozen=True, eq=False):
    """An answer that was given, by what it answered. The messages of the call are those of the trace up to `prompt`,
    unless the task rewrote them."""

    head: ModelCall
    """The call without its messages."""
    prompt: int
    rewritten: tuple[Message, ...] | None
    reply: ModelReply
    key: str
    delivered: bool


class Admission:
    """One rollout that may make calls."""

    def __init__(
        self, session: Session, state: dict[str, Any], routes: Mapping[str, StateRoute], kept_answers: int
    ) -> None:
        self.key = new_secret()
        self.state_key = new_secret()
        self.tools_key = new_secret()
        self.session = session
        self.state = state
        self.routes = routes
        """What the state key opens, by path."""
        self.tails = Tails(session.images)
        """Reads the requests, each from where it differs from an earlier one."""
        self.sealed = False
        self.running: dict[Exchange, None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._kept: deque[Kept] = deque(maxlen=kept_answers)

    def __repr__(self) -> str:
        ended = ", sealed" if self.sealed else ""
        return f"<Admission {self.session.trace!r}: {len(self._tasks)} requests, {len(self.running)} calls{ended}>"

    @property
    def requests(self) -> int:
        """Requests that are being served."""
        return len(self._tasks)

    def enter(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)

    def leave(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)

    def keep(self, exchange: Exchange, turn: Turn, reply: ModelReply) -> None:
        """Remember an answer, before it is seen, for clients that ask again. Token ids are not kept twice."""
        call = exchange.call
        self.tails.said(reply.message)
        self._kept.append(
            Kept(
                head=_head(call),
                prompt=turn.prompt,
                rewritten=None if turn.call.messages is call.messages else call.messages,
                reply=reply if call.return_tokens else msgspec.structs.replace(reply, tokens=None),
                key=exchange.mark.key,
                delivered=not exchange.deserted,
            )
        )

    def find(self, call: ModelCall, mark: Mark) -> Exchange | ModelReply | None:
        """The call that this one repeats, running or answered. A call whose client is gone is likelier to be the one
        that comes back than one whose client still waits; then the newest."""
        running = [one for one in reversed(self.running) if one.mark.key == mark.key and one.call == call]
        for one in sorted(running, key=lambda one: not one.deserted):
            return one
        head = _head(call)
        kept = [one for one in reversed(self._kept) if one.key == mark.key and one.head == head]
        for answer in sorted(kept, key=lambda one: one.delivered):
            if self._messages(answer) == call.messages:
                return answer.reply
        return None

    def _messages(self, kept: Kept) -> tuple[Message, ...]:
        return self.session.trace.path(kept.prompt) if kept.rewritten is None else kept.rewritten

    async def seal(self) -> None:
        """End what is still being served. Afterwards no call of the rollout is open."""
        self.sealed = True
        self._kept.clear()
        self.tails.close()
        if not self._tasks:
            return
        for task in self._tasks:
            task.cancel()
        _, stuck = await asyncio.wait(self._tasks, timeout=SEAL_S)
        if stuck:
            log.warning("%d requests of %r did not end within %g s", len(stuck), self.session.trace, SEAL_S)


def _head(call: ModelCall) -> ModelCall:
    return msgspec.structs.replace(call, messages=(), source=None)
