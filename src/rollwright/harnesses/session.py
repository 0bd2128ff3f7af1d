"""The one door to the engine. Every model call of a rollout goes through its session, which keeps the budget and asks
the task about the call. What happens to a call that may be made is in `turns`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from rollwright.dialects import ImageHold
from rollwright.dialects.steps import in_turns
from rollwright.engines import Engine
from rollwright.traces import LiveTrace
from rollwright.wire import Message, ModelCall, ModelReply, RolloutError, Sampling, Stop

from .conversations import Conversation, Heads
from .guard import Guard, Refusal
from .turns import Turn, bare

T = TypeVar("T")


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
        self.engine = engine
        self.trace = trace
        self.model = model
        self.guard: Guard | None = None
        """What the task has to say about each call; None if it says nothing."""
        self.stopped: Stop | None = None
        """Why the first call was refused that will never be made; None while calls are made."""
        self.broken: RolloutError | None = None
        """How the newest call that ended failed; None if it was answered. A task that broke stays broken."""
        self.over = asyncio.Event()
        """Set with `stopped`, for those who wait for a program that is refused its calls."""
        self._sampling = sampling
        self._limits = limits
        self._return_tokens = return_tokens
        self._clock = clock
        self._deadline = clock() + limits.timeout_s
        self._heads = Heads(trace)
        self._images: ImageHold | None = None

    @property
    def images(self) -> ImageHold:
        """Where the bytes of images go before a call shows them. They stay until the session is closed."""
        if self._images is None:
            self._images = self.engine.images.hold()
        return self._images

    def close(self) -> None:
        """Let go of the images, when nobody will look at the rollout's trace any more. Idempotent."""
        if self._images is not None:
            self._images.close()
            self._images = None

    def begin(self, opening: Sequence[Message]) -> Conversation:
        return Conversation(self.trace, opening)

    def resume(self, messages: Sequence[Message]) -> Conversation:
        """The conversation that continues the longest recorded prefix of `messages`, with the rest said anew."""
        return self._heads.resume(tuple(messages))

    def spent(self) -> Stop | None:
        """Which limit, if any, forbids another call. Calls that are under way have spent their turn."""
        limits, usage = self._limits, self.trace.usage
        if self._clock() >= self._deadline:
            return Stop.TIME_SPENT
        if _over(self.trace.turns + self.trace.open_calls, limits.max_turns):
            return Stop.TURNS_SPENT
        if (
            _over(usage.prompt_tokens, limits.max_input_tokens)
            or _over(usage.completion_tokens, limits.max_output_tokens)
            or _over(usage.total_tokens, limits.max_total_tokens)
        ):
            return Stop.TOKENS_SPENT
        return None

    async def sample(self, conversation: Conversation) -> ModelReply | Stop:
        """The model's next message, added to the conversation; or what forbids it."""
        turn = await self._turn(ModelCall("", conversation.messages, self.trace.tools), conversation)
        if isinstance(turn, Refusal):
            return turn.stop or Stop.TASK_STOPPED
        reply = await turn.complete()
        if isinstance(reply, Refusal):
            return reply.stop or Stop.TASK_STOPPED
        if turn.conversation is not conversation:
            conversation.answered(turn.conversation.tip, reply.message)
        return reply

    async def ask(self, asked: ModelCall) -> Turn | Refusal:
        """The turn that a program's request begins, once it is allowed; nothing is on record before it is run."""
        return await self._turn(asked, None)

    def stop(self, stop: Stop) -> None:
        """No call is made from now on. The first reason stays."""
        self.stopped = self.stopped or stop
        self.over.set()

    async def _turn(self, asked: ModelCall, conversation: Conversation | None) -> Turn | Refusal:
        stop = self.stopped or self.spent()
        if stop is not None:
            return self._refused(stop)
        call = self._resolved(asked)
        if self.guard is not None:
            verdict = await self.judged(self.guard.request(call))
            if isinstance(verdict, Refusal):
                if verdict.stop is not None:
                    self.stop(verdict.stop)
                return verdict
            if verdict.messages != call.messages:
                conversation = None
            call = verdict
        if conversation is None:
            conversation = await in_turns(self._heads.steps_to_resume(call.messages))
        return Turn(self, call, conversation, self._heads)

    async def count(self, asked: ModelCall) -> int | None:
        """How many tokens the prompt of a call would be; None where the engine does not know. Nothing is sampled and
        nothing goes on record."""
        return await self.engine.count(self._resolved(asked))

    async def judged(self, judging: Awaitable[T]) -> T:
        """What the task says. A task whose own code breaks has failed its rollout, whatever the program makes of it."""
        try:
            return await judging
        except RolloutError as error:
            self.broken, self.stopped = bare(error), Stop.FAILED
            self.over.set()
            raise

    def _refused(self, stop: Stop) -> Refusal:
        self.stop(stop)
        return Refusal(f"this rollout is over ({_REASONS.get(stop, stop.value)}); no model call is made", stop)

    def _resolved(self, asked: ModelCall) -> ModelCall:
        """What the engine is asked: the rollout's own choices where it has made some, the program's otherwise."""
        return msgspec.structs.replace(
            asked,
            model=self.model,
            sampling=self._within_budget(_merged(self._sampling, asked.sampling)),
            return_tokens=self._return_tokens or asked.return_tokens,
        )

    def _within_budget(self, sampling: Sampling) -> Sampling:
        if self._limits.max_output_tokens is None:
            return sampling
        left = self._limits.max_output_tokens - self.trace.usage.completion_tokens
        asked = sampling.max_tokens
        return msgspec.structs.replace(sampling, max_tokens=left if asked is None else min(asked, left))


_REASONS = {
    Stop.TURNS_SPENT: "its turns are spent",
    Stop.TOKENS_SPENT: "its tokens are spent",
    Stop.TIME_SPENT: "its time is spent",
    Stop.TASK_STOPPED: "its task ended it",
    Stop.FAILED: "it failed",
}
_UNSET = Sampling()


def _merged(own: Sampling, asked: Sampling) -> Sampling:
    if own in (_UNSET, asked):
        return asked
    return Sampling(
        temperature=asked.temperature if own.temperature is None else own.temperature,
        top_p=asked.top_p if own.top_p is None else own.top_p,
        max_tokens=asked.max_tokens if own.max_tokens is None else own.max_tokens,
        seed=asked.seed if own.seed is None else own.seed,
        stop=own.stop or asked.stop,
    )


def _over(used: int, limit: int | None) -> bool:
    return limit is not None and used >= limit
