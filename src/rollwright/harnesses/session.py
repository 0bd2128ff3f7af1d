"""The one door to the engine. Every model call of a rollout goes through its session, which keeps the budget, puts the
call on record before it is made and its answer before anyone sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from rollwright.engines import Engine
from rollwright.traces import LiveTrace, Phase
from rollwright.wire import Failure, Layer, Message, ModelCall, ModelReply, Sampling, Stop


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one rollout may spend. `None` is no limit. A spent limit ends the conversation, which is then scored."""

    max_turns: int | None = 64
    """Model calls."""
    max_input_tokens: int | None = None
    """Prompt tokens over all calls, as the engine counts them."""
    max_output_tokens: int | None = None
    """Sampled tokens over all calls."""
    max_total_tokens: int | None = None
    """Both together."""
    timeout_s: float = 1800.0
    """Wall time of the conversation."""
    setup_timeout_s: float = 300.0
    """Wall time of making the box and of the task's setup, each."""
    score_timeout_s: float = 300.0
    """Wall time of finalize and of the rewards, each."""


class Conversation:
    """One branch of the tree, held by its tip. Adding to it costs what is added."""

    def __init__(self, trace: LiveTrace, opening: Sequence[Message]) -> None:
        self._trace = trace
        self._messages = list(opening)
        self.tip = trace.extend(-1, opening)

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)

    def say(self, *messages: Message) -> None:
        """Add what somebody other than the model said."""
        self.tip = self._trace.extend(self.tip, messages)
        self._messages.extend(messages)

    def branch(self) -> Conversation:
        """Another conversation that begins as this one stands now."""
        twin = Conversation(self._trace, ())
        twin.tip, twin._messages = self.tip, list(self._messages)
        return twin

    def answered(self, tip: int, message: Message) -> None:
        self.tip = tip
        self._messages.append(message)


class Session:
    """Model calls of one rollout, within its limits."""

    def __init__(
        self,
        engine: Engine,
        trace: LiveTrace,
        *,
        model: str,
        sampling: Sampling = Sampling(),  # noqa: B008 - frozen
        limits: Limits = Limits(),  # noqa: B008 - frozen
        return_tokens: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._trace = trace
        self._model = model
        self._sampling = sampling
        self._limits = limits
        self._return_tokens = return_tokens
        self._clock = clock
        self._deadline = clock() + limits.timeout_s
        self._latest: Conversation | None = None

    def begin(self, opening: Sequence[Message]) -> Conversation:
        return Conversation(self._trace, opening)

    def resume(self, messages: Sequence[Message]) -> Conversation:
        """The conversation that continues the longest recorded prefix of `messages`, with the rest said anew."""
        conversation = Conversation(self._trace, ())
        conversation.tip, covered = self._match(messages)
        conversation._messages = list(messages[:covered])
        conversation.say(*messages[covered:])
        return conversation

    def _match(self, messages: Sequence[Message]) -> tuple[int, int]:
        # Nearly always a program goes on where it left off. Comparing with that conversation is one pass over
        # pointers where the messages are the same objects; walking the tree hashes each of them.
        latest = self._latest
        if latest is not None and list(messages[: len(latest._messages)]) == latest._messages:
            return latest.tip, len(latest._messages)
        return self._trace.match(messages)

    def spent(self) -> Stop | None:
        """Which limit, if any, forbids another call."""
        limits, usage = self._limits, self._trace.usage
        if self._clock() >= self._deadline:
            return Stop.TIME_SPENT
        if _over(self._trace.turns, limits.max_turns):
            return Stop.TURNS_SPENT
        if (
            _over(usage.prompt_tokens, limits.max_input_tokens)
            or _over(usage.completion_tokens, limits.max_output_tokens)
            or _over(usage.total_tokens, limits.max_total_tokens)
        ):
            return Stop.TOKENS_SPENT
        return None

    async def sample(self, conversation: Conversation) -> ModelReply | Stop:
        """The model's next message, added to the conversation; or the limit that forbids it."""
        stop = self.spent()
        if stop is not None:
            return stop
        call = ModelCall(
            model=self._model,
            messages=conversation.messages,
            tools=self._trace.tools,
            sampling=self._within_budget(),
            return_tokens=self._return_tokens,
        )
        number = self._trace.prepare(conversation.tip, self._model)
        try:
            with self._trace.phase(Phase.MODEL):
                reply = await self._engine.complete(call)
                self._trace.queued(reply.queue_s)
        except BaseException as error:
            # Cancellation too: an open call would make the rollout look as if it had lost an answer.
            self._trace.abort(number, Failure.of(error, Layer.ENGINE))
            raise
        conversation.answered(self._trace.commit(number, reply), reply.message)
        self._latest = conversation
        return reply

    def _within_budget(self) -> Sampling:
        if self._limits.max_output_tokens is None:
            return self._sampling
        left = self._limits.max_output_tokens - self._trace.usage.completion_tokens
        asked = self._sampling.max_tokens
        return msgspec.structs.replace(self._sampling, max_tokens=left if asked is None else min(asked, left))


def _over(used: int, limit: int | None) -> bool:
    return limit is not None and used >= limit
