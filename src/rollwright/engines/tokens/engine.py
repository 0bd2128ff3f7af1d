"""The client of a server that takes token ids and gives token ids: every call is exact by construction.

Messages become ids by extending the tape of the call that they continue, so what was sampled is never tokenized again;
a conversation that continues none of ours, or that the format cannot extend, is rendered whole. Ids become a message by
the family's parser. What the server was sent and what it sampled are the tokens of the reply.

It keeps tapes within a budget and no other state of a conversation. Images are sent beside the ids; the server widens
their placeholders and tells what it made of them.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np

from rollwright.dialects import ImageStore
from rollwright.engines.channel import RelayStats, Sleep
from rollwright.engines.config import RelayConfig, TokensConfig
from rollwright.engines.contract import Ear
from rollwright.engines.courier import Courier
from rollwright.engines.journey import Obituary
from rollwright.renderers.contract import Declined
from rollwright.renderers.pool import RendererPool
from rollwright.renderers.tape import Tape
from rollwright.wire import (
    CallTokens,
    Delta,
    End,
    EngineRefused,
    EngineUnavailable,
    Finish,
    Image,
    ModelCall,
    ModelReply,
    ReplyBuilder,
    Sampling,
    Usage,
    UsageError,
    WireError,
    reply_of,
    user,
)
from rollwright.wire.arrays import Ids

from .memory import Memory, Turn
from .pictures import content_parts, shown, widens
from .reader import TokenStreamReader
from .routing import placed
from .server import ContextLimit, token_endpoint
from .wire import WIRES, TokenAsk

_PROBE_DEADLINE_S = 60.0
_PROBE_RETRIES = 1


class TokensStats(msgspec.Struct, frozen=True):
    """Counters since the engine was made."""

    extended: int
    """Prompts that were made by extending a tape."""
    rendered: int
    """Prompts that were rendered whole."""
    declined: dict[str, int]
    """Of those, conversations of ours that could not be extended, by reason."""
    remembered: int
    """Turns that a call may continue."""
    forgotten: int
    """Turns that fell out of the budget."""
    carried: RelayStats


class Asked(msgspec.Struct, frozen=True, eq=False):
    """One call on its way."""

    call: ModelCall
    tape: Tape
    before: Turn | None
    """The turn whose tape was extended."""
    routed_from: int | None
    images: dict[str, Image]
    """What the prompt shows, by hash; the server widens them."""
    body: bytes


class TokensEngine:
    """An Engine over token ids. `model` is the model of calls that name none, and of the probe. Closes the pool."""

    def __init__(
        self,
        config: TokensConfig,
        relay: RelayConfig,
        pool: RendererPool,
        model: str = "",
        *,
        images: ImageStore | None = None,
        obituary: Obituary = lambda: None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.model = model
        self.images = ImageStore() if images is None else images
        self._owns_images = images is None
        self._config = config
        self._pool = pool
        self._wire = WIRES[config.endpoint]
        endpoint = token_endpoint(relay, self._wire)
        self._name = endpoint.name
        self._courier = Courier(endpoint, self._wire, relay, obituary=obituary, sleep=sleep)
        self._limit = ContextLimit(endpoint, self._wire.path, config.context_tokens)
        self._memory = Memory(int(config.remember_mb * 2**20))
        self._extended = self._rendered = 0
        self._declined: dict[str, int] = {}

    @property
    def stats(self) -> TokensStats:
        counts = (self._extended, self._rendered, dict(self._declined), len(self._memory), self._memory.forgotten)
        return TokensStats(*counts, self._courier.stats)

    def __repr__(self) -> str:
        now = self._courier.stats
        state = f"{now.in_flight} in flight, {len(self._memory)} turns remembered"
        return f"<TokensEngine {self._name} {self._wire.name} {self._pool.renderer.family}: {state}>"

    async def complete(self, call: ModelCall) -> ModelReply:
        return await self._complete(call, None)

    async def stream(self, call: ModelCall, ear: Ear) -> End:
        asked = await self._ask(call, stream=True)
        listening = _Remembering(ear)

        def reader() -> TokenStreamReader:
            return TokenStreamReader(self._pool.renderer.parser(asked.tape))

        end = self._ended(asked, await self._courier.stream(asked.call, asked.body, reader, listening))
        # The turn is remembered before anyone sees the end, so that the next call finds it.
        listening.builder.apply(end)
        self._remember(asked, listening.builder.reply())
        return end

    async def count(self, call: ModelCall) -> int | None:
        """The length of the very ids that the server would be sent. None for calls that cannot be rendered, and for
        those with images: how wide they become is the server's to know."""
        if shown(call.messages):
            return None
        try:
            turn = self._memory.find(call.messages, call.follows)
            tape = await self._pool.extend(turn.tape, call.messages[turn.count :], call.tools) if turn else None
            if tape is None or isinstance(tape, Declined):
                tape = await self._pool.render(call.messages, call.tools)
        except (EngineRefused, UsageError):
            return None
        return len(tape)

    async def probe(self) -> None:
        """One small call, sent again once at most. EngineRefused if ids or logprobs do not come back."""
        call = ModelCall(self.model, (user("Say ok."),), sampling=Sampling(max_tokens=1))
        try:
            async with asyncio.timeout(_PROBE_DEADLINE_S):
                await self._complete(call, _PROBE_RETRIES, remember=False)
        except TimeoutError as error:
            text = f"{self._name} did not answer a probe within {_PROBE_DEADLINE_S:.0f} s; check the base_url"
            raise EngineUnavailable(text) from error

    async def close(self) -> None:
        """Idempotent. Calls in flight end with EngineUnavailable."""
        await self._courier.close()
        if self._owns_images:
            self.images.close()
        self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        await self.close()

    # From messages to ids.

    async def _ask(self, call: ModelCall, *, stream: bool) -> Asked:
        call = msgspec.structs.replace(call, stream=stream, model=call.model or self.model)
        try:
            tape, before = await self._prompt(call)
        except UsageError as error:
            raise EngineRefused(f"the call cannot be rendered: {error}") from error
        images = shown(call.messages) if before is None else before.images | shown(call.messages[before.count :])
        parts = await self._parts(tape, images) if images else ()
        routed_from = None
        if self._config.routed_experts:
            # The last id that was sampled has no row yet: the rows go on where the ones on record end.
            routed_from = before.routed if before is not None else 0
            routed_from = routed_from if parts else min(routed_from, len(tape) - 1)
        room = await self._limit.room(len(tape), call.sampling.max_tokens, call.model)
        ask = TokenAsk(
            model=call.model,
            ids=tape.ids,
            sampling=call.sampling,
            stop_ids=self._pool.renderer.stop_ids,
            # How wide images become is the server's to know, and so is the room that is left beside them.
            max_tokens=None if parts and call.sampling.max_tokens is None else room,
            routed_from=routed_from,
            stream=stream,
            content_parts=parts,
            extra=call.extra,
        )
        return Asked(call, tape, before, routed_from, images, self._wire.write_ask(ask))

    async def _parts(self, tape: Tape, images: dict[str, Image]) -> tuple[dict[str, Any], ...]:
        if not self._wire.takes_images:
            raise EngineRefused(
                f"the {self._wire.name} path of {self._name} takes no images beside ids; set engine.tokens.endpoint to "
                "generate, or use the relay engine"
            )
        return await content_parts(tape, images, self.images)

    async def _prompt(self, call: ModelCall) -> tuple[Tape, Turn | None]:
        turn = self._memory.find(call.messages, call.follows)
        if turn is not None:
            longer = await self._pool.extend(turn.tape, call.messages[turn.count :], call.tools)
            if not isinstance(longer, Declined):
                self._extended += 1
                return longer, turn
            self._declined[longer.reason] = self._declined.get(longer.reason, 0) + 1
        self._rendered += 1
        return await self._pool.render(call.messages, call.tools), None

    # From ids to a message.

    async def _complete(self, call: ModelCall, max_retries: int | None, *, remember: bool = True) -> ModelReply:
        asked = await self._ask(call, stream=False)
        raw = await self._courier.complete(asked.call, asked.body, max_retries)
        tokens = self._exact(asked, raw.tokens)
        try:
            events = await self._pool.parse(asked.tape, tokens.completion_ids, cut=raw.finish is Finish.LENGTH)
        except WireError as error:
            raise EngineRefused(f"{self._name} sampled what cannot be read: {error}") from error
        parsed = reply_of(events)
        reply = msgspec.structs.replace(
            raw, message=parsed.message, finish=_finish(raw.finish, parsed.finish), usage=_usage(tokens), tokens=tokens
        )
        if remember:
            self._remember(asked, reply)
        return reply

    def _ended(self, asked: Asked, end: End) -> End:
        tokens = self._exact(asked, end.tokens)
        return msgspec.structs.replace(end, usage=_usage(tokens), tokens=tokens)

    def _exact(self, asked: Asked, tokens: CallTokens | None) -> CallTokens:
        """What came back, with the prompt that was sent; EngineRefused unless it is proven exact."""
        if tokens is None:
            raise EngineRefused(
                f"{self._name} answered without token ids or logprobs; a router in between may strip them: "
                "use the address of the engine itself"
            )
        prompt = self._prompted(asked, tokens.prompt_ids)
        routing = None
        if asked.routed_from is not None:
            if tokens.routing is None:
                text = "serve the model with --enable-return-routed-experts, or turn engine.tokens.routed_experts off"
                raise EngineRefused(f"{self._name} answered without routed experts; {text}")
            try:
                total = len(prompt) + len(tokens.completion_ids)
                routing = placed(tokens.routing.rows, asked.routed_from, total)
            except WireError as error:
                raise EngineRefused(f"{self._name} sent what makes no sense: {error}") from error
        return CallTokens(prompt, tokens.completion_ids, tokens.logprobs, routing)

    def _prompted(self, asked: Asked, told: Ids) -> Ids:
        """The ids that the model was shown: what was sent, with its images widened by the server."""
        prompt = asked.tape.ids
        if asked.images and not len(told):
            raise EngineRefused(f"{self._name} does not tell what ids images became; it must know return_token_ids")
        if asked.images and widens(told, prompt, asked.tape.images):
            return told
        if len(told) and not np.array_equal(told, prompt):
            raise EngineRefused(f"{self._name} was shown other ids than it was sent; something in between changed them")
        return prompt

    def _remember(self, asked: Asked, reply: ModelReply) -> None:
        assert reply.tokens is not None
        tokens, before = reply.tokens, asked.before
        names = {call.id: call.name for call in reply.message.tool_calls}
        said = asked.call.messages[before.count if before is not None else 0 :]
        routed = tokens.routing.start + len(tokens.routing.rows) if tokens.routing is not None else 0
        turn = Turn(
            before=before,
            added=(*said, reply.message),
            count=len(asked.call.messages) + 1,
            tape=asked.tape.sample(tokens.completion_ids, names),
            routed=routed,
            images=asked.images,
            name=asked.call.name,
        )
        self._memory.put(turn)


class _Remembering:
    """Puts together what another one hears."""

    def __init__(self, ear: Ear) -> None:
        self.builder = ReplyBuilder()
        self._ear = ear

    def hear(self, delta: Delta) -> bool:
        self.builder.apply(delta)
        return self._ear.hear(delta)

    async def ready(self) -> None:
        await self._ear.ready()


def _finish(told: Finish, parsed: Finish) -> Finish:
    """An answer that was cut is cut, whatever it says; one that calls tools is one that calls tools."""
    return told if told is Finish.LENGTH else parsed


def _usage(tokens: CallTokens) -> Usage:
    return Usage(len(tokens.prompt_ids), len(tokens.completion_ids))
