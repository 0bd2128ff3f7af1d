"""One model call from intent to commit. The intent is on record before the engine is asked and the answer before anyone
sees its end; whatever else happens, the call is put on record as aborted. Exactly one of the two, once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from rollwright.engines import Ear, tell
from rollwright.traces import Phase
from rollwright.wire import (
    Delta,
    End,
    EngineError,
    EngineUnavailable,
    Event,
    Failure,
    Layer,
    ModelCall,
    ModelReply,
    RolloutError,
    WireError,
    end_of,
    events_of,
    reply_of,
)

from .conversations import Conversation, Heads
from .guard import Refusal

if TYPE_CHECKING:
    from .session import Session


class Turn:
    """A call that is allowed. It is run once, by `complete` or by `stream`."""

    def __init__(self, session: Session, call: ModelCall, conversation: Conversation, heads: Heads) -> None:
        self.call = call
        """As the engine is asked."""
        self.conversation = conversation
        self.prompt = conversation.tip
        """The node of the last message that the model is shown."""
        self.reply: ModelReply | None = None
        """The answer as it is seen, once it is on record."""
        self.events: list[Event] = []
        """What `stream` has given out so far."""
        self._session = session
        self._heads = heads

    async def complete(self) -> ModelReply | Refusal:
        """The whole answer, as the task lets it be seen."""
        session, trace = self._session, self._session.trace
        trace.show(self.call.tools)
        number = trace.prepare(self.prompt, self.call.model)
        try:
            with trace.phase(Phase.MODEL):
                reply = await session.engine.complete(self._named(number))
                trace.queued(reply.queue_s)
        except BaseException as error:
            # Cancellation too: an open call would make the rollout look as if it had lost an answer.
            self._abort(number, error, heard=False)
            raise
        await self._commit(number, reply)
        return await self._guarded(reply)

    async def stream(self, ear: Ear) -> End | Refusal:
        """Tell what is said as it comes; the end is returned after the answer is on record. A task that watches answers
        sees each of them whole, so its programs hear nothing of it before its end."""
        guard, noting = self._session.guard, _Noting(ear, self.events)
        end = await (self._gathered if guard is not None and guard.watches_answers else self._streamed)(noting)
        if not isinstance(end, Refusal):
            self.events.append(end)
        return end

    async def _gathered(self, ear: Ear) -> End | Refusal:
        reply = await self.complete()
        return reply if isinstance(reply, Refusal) else await tell(ear, events_of(reply))

    async def _streamed(self, ear: Ear) -> End:
        session, trace = self._session, self._session.trace
        trace.show(self.call.tools)
        number = trace.prepare(self.prompt, self.call.model)
        try:
            with trace.phase(Phase.MODEL):
                end = await session.engine.stream(self._named(number), ear)
                reply = _whole([*self.events, end])
                trace.queued(reply.queue_s)
        except BaseException as error:
            self._abort(number, error, heard=bool(self.events))
            raise
        await self._commit(number, reply)
        return end_of(reply)

    def _named(self, number: int) -> ModelCall:
        """The call with its place in the trace: an engine that keeps conversations must go on in this very one."""
        name, follows = self._session.trace.names(number)
        return msgspec.structs.replace(self.call, name=name, follows=follows)

    async def _commit(self, number: int, reply: ModelReply) -> None:
        session = self._session
        self.conversation.answered(session.trace.commit(number, reply), reply.message)
        self._heads.remember(self.conversation)
        self.reply = reply
        if isinstance(session.broken, EngineError):
            session.broken = None
        if session.guard is not None:
            stop = await session.judged(session.guard.answered())
            if stop is not None:
                session.stop(stop)

    def _abort(self, number: int, error: BaseException, *, heard: bool) -> None:
        # A WireError is the listener's, who cannot write what it heard: those of engines are translated.
        left = isinstance(error, asyncio.CancelledError | WireError)
        failure = Failure.of(error, Layer.HARNESS if left else Layer.ENGINE)
        if left:
            failure = msgspec.structs.replace(failure, message="nobody waited for the answer any longer")
        self._session.trace.abort(number, failure, heard=heard)
        if isinstance(error, EngineError):
            # Without its trail, which would keep the call and all that it holds.
            self._session.broken = bare(error)

    async def _guarded(self, reply: ModelReply) -> ModelReply | Refusal:
        guard = self._session.guard
        if guard is None:
            return reply
        verdict = await self._session.judged(guard.response(self.call, reply))
        if isinstance(verdict, ModelReply):
            self.reply = verdict
        elif verdict.stop is not None:
            self._session.stop(verdict.stop)
        return verdict


class _Noting:
    """Keeps what another one hears."""

    __slots__ = ("_hear", "_keep", "ready")

    def __init__(self, ear: Ear, events: list[Event]) -> None:
        self._hear = ear.hear
        self._keep = events.append
        self.ready = ear.ready

    def hear(self, delta: Delta) -> bool:
        self._keep(delta)
        return self._hear(delta)


def bare(error: RolloutError) -> RolloutError:
    """The same error without the frames that it passed."""
    return type(error)(str(error))


def _whole(events: list[Event]) -> ModelReply:
    try:
        return reply_of(events)
    except WireError as error:
        raise EngineUnavailable(str(error)) from error
