"""A model call from request to answer: read, looked up if it repeats another, asked, recorded, told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
from aiohttp import web

from rollwright.dialects import Dialect
from rollwright.dialects.steps import in_turns
from rollwright.engines import Ear, tell
from rollwright.harnesses import Refusal, Turn, bare
from rollwright.wire import End, ModelCall, ModelReply, RolloutError, WireError, events_of

from .admission import Admission
from .bodies import Bodies
from .config import InterceptConfig
from .connection import Asked
from .delivery import Answer, Outlet
from .exchange import Exchange
from .keys import mark_of
from .rejection import FINAL, Rejected, told
from .turnstile import Turnstile

OVER = "this rollout is over"


class Carrier:
    """Carries the model calls of one server. Holds no rollout."""

    def __init__(self, config: InterceptConfig, bodies: Bodies) -> None:
        self._config = config
        self._bodies = bodies
        self._turnstile = Turnstile()

    async def carry(
        self, request: Asked, dialect: Dialect, admission: Admission, task: asyncio.Task[object]
    ) -> web.StreamResponse:
        await self._turnstile.enter()
        call = await self.read(request, dialect, admission)
        mark = mark_of(request.headers)
        found = admission.find(call, mark) if mark.again else None
        if found is None:
            return await self._begin(request, dialect, admission, Exchange(call, mark, task))
        if isinstance(found, ModelReply):
            return await self._replay(request, dialect, call, found)
        return await self._follow(request, dialect, call, found)

    async def read(self, request: Asked, dialect: Dialect, admission: Admission) -> ModelCall:
        """The call that a request asks for. Its bytes are let go as they are read."""
        intake = admission.tails.intake(dialect.form)
        try:
            await self._bodies.feed(request, intake.feed)
            return (await in_turns(intake.steps())).call
        except WireError as error:
            raise Rejected(400, str(error)) from error

    async def _begin(
        self, request: Asked, dialect: Dialect, admission: Admission, exchange: Exchange
    ) -> web.StreamResponse:
        """Make a call that nobody has made before."""
        turn = await _asked(admission, exchange.call)
        exchange.events = turn.events
        admission.running[exchange] = None
        request.on_left = lambda: exchange.left(self._config.retry_grace_s)
        try:
            if not exchange.call.stream:
                return await _whole(dialect, admission, exchange, turn)
            ending = partial(_keep, admission, exchange, turn)
            return await self._stream(request, dialect, exchange.call, turn.stream, exchange, ending)
        except RolloutError as error:
            exchange.settle(bare(error))
            raise told(error) from error
        finally:
            if exchange.outcome is None:
                exchange.settle(RolloutError(OVER if admission.sealed else "the call was given up"))
            del admission.running[exchange]

    async def _follow(
        self, request: Asked, dialect: Dialect, call: ModelCall, exchange: Exchange
    ) -> web.StreamResponse:
        """Hear what another request has asked for and is being told."""
        try:
            if call.stream:
                return await self._stream(request, dialect, call, exchange.follow)
            reply = await exchange.answer()
        except RolloutError as error:
            raise told(error) from error
        if isinstance(reply, Refusal):
            raise _refused(reply)
        return _answer(dialect, call, reply)

    async def _replay(self, request: Asked, dialect: Dialect, call: ModelCall, reply: ModelReply) -> web.StreamResponse:
        """Give an answer that is on record once more."""
        if not call.stream:
            return _answer(dialect, call, reply)
        return await self._stream(request, dialect, call, partial(tell, events=events_of(reply)))

    async def _stream(
        self,
        request: Asked,
        dialect: Dialect,
        call: ModelCall,
        telling: Callable[[Ear], Awaitable[End | Refusal]],
        driven: Exchange | None = None,
        ending: Callable[[], None] = lambda: None,
    ) -> web.StreamResponse:
        """Deliver what is told as it comes. Once something was delivered, what goes wrong is told within the stream.
        Those who follow `driven` hear of each event, and `ending` is called before its end is told."""
        config = self._config
        outlet = Outlet(request, dialect.stream_writer(call), config.keepalive_s, config.drain_timeout_s, driven)
        request.outlet = outlet
        try:
            end = await telling(outlet)
            if isinstance(end, Refusal):
                if driven is not None:
                    driven.settle(end)
                raise _refused(end)
            ending()
            outlet.put(end)
        except (RolloutError, WireError, Rejected) as error:
            if not outlet.begun:
                raise
            outlet.fail(str(error))
        except asyncio.CancelledError:
            # Whoever cancels us ends the rollout, or knows that the client is gone.
            if outlet.begun:
                outlet.fail(OVER)
            raise
        finally:
            outlet.close()
        return outlet


async def _asked(admission: Admission, call: ModelCall) -> Turn:
    try:
        turn = await admission.session.ask(call)
    except RolloutError as error:
        raise told(error) from error
    if isinstance(turn, Refusal):
        raise _refused(turn)
    return turn


async def _whole(dialect: Dialect, admission: Admission, exchange: Exchange, turn: Turn) -> web.StreamResponse:
    reply = await turn.complete()
    exchange.settle(reply)
    if isinstance(reply, Refusal):
        raise _refused(reply)
    admission.keep(exchange, turn, reply)
    return _answer(dialect, exchange.call, reply)


def _keep(admission: Admission, exchange: Exchange, turn: Turn) -> None:
    """The answer is whole and on record: keep it, before its end is told, for those who follow or ask again."""
    assert turn.reply is not None
    admission.keep(exchange, turn, turn.reply)
    exchange.settle(turn.reply)


def _answer(dialect: Dialect, call: ModelCall, reply: ModelReply) -> Answer:
    """The program hears the name that it asked for, whoever spoke."""
    try:
        return Answer(dialect.write_reply(msgspec.structs.replace(reply, model=call.model), call))
    except WireError as error:
        raise Rejected(502, f"the answer cannot be written in this dialect: {error}", headers=FINAL) from error


def _refused(refusal: Refusal) -> Rejected:
    return Rejected(400, refusal.message, refusal.stop.value if refusal.stop else "refused_by_task", headers=FINAL)
