"""The scripted engine without its sockets: a call comes, a fault is drawn, an answer is said and logged."""

from __future__ import annotations

import inspect
from typing import NamedTuple

import msgspec

from rollwright.wire import (
    EngineRefused,
    EngineUnavailable,
    Finish,
    Message,
    ModelCall,
    ModelReply,
    Usage,
)

from .config import Fault, ScriptedConfig
from .conversations import Memory, draw, fingerprints
from .faults import FaultPlan
from .log import CallLog, CallRing, Stats
from .policies import Policy, Said
from .tape import Spoken, Tape
from .voice import PROMPT_IDS, Voice

ROUTED_FROM = "routed_experts_from"
"""Request field: the first position whose routed experts are wanted."""


class Arrival(NamedTuple):
    """A call that came, with everything that its answer depends on."""

    number: int
    dialect: str
    call: ModelCall
    prints: list[bytes]
    fault: Fault
    asked: int
    latency_s: float


class Player:
    """Books and script of one engine. Arrivals are taken without awaiting, so no two calls share a place."""

    def __init__(self, config: ScriptedConfig, policy: Policy, voice: Voice | None = None) -> None:
        self._config = config
        self._policy = policy
        self._memory = Memory()
        self._plan = FaultPlan(config)
        self._tape = Tape(config)
        self._voice = voice
        self._ring = CallRing(config.log_calls)
        self.stats = Stats()
        self.policy_version = 0
        """What calls that come now are answered by."""

    def arrive(self, call: ModelCall, dialect: str) -> Arrival:
        prints = fingerprints(call.messages, call.tools)
        conversation = prints[-1]
        came = self._memory.came(conversation)
        fault = self._plan.next(conversation, came)
        # A faulty answer does not count as given: with its retries, a client hears what it hears without faults.
        count = self._memory.answered if fault is Fault.NONE else self._memory.answers
        arrival = Arrival(
            self.stats.received, dialect, call, prints, fault, count(conversation), self._latency(conversation, came)
        )
        self.stats.received += 1
        if fault is not Fault.NONE:
            self.stats.faults[fault] = self.stats.faults.get(fault, 0) + 1
        return arrival

    async def answer(self, arrival: Arrival) -> ModelReply:
        """What the policy says, in tokens. EngineError is its refusal, or tells how it broke."""
        version = self.policy_version
        try:
            said = await self._ask(arrival)
        except BaseException:
            self.skip(arrival)
            raise
        reply, tokens = self._spoken(arrival, said), None
        if version and not reply.policy_version:
            reply = msgspec.structs.replace(reply, policy_version=version)
        if self._config.tokens:
            tokens = reply.tokens
            if not arrival.call.return_tokens:
                reply = msgspec.structs.replace(reply, tokens=None)
        self._ring.add(CallLog(arrival.number, arrival.dialect, _loggable(arrival.call), arrival.fault, reply, tokens))
        return reply

    def skip(self, arrival: Arrival) -> None:
        """Log a call that is not answered: a fault forbids it, the policy broke, or the client left."""
        self._ring.add(CallLog(arrival.number, arrival.dialect, _loggable(arrival.call), arrival.fault))

    @property
    def log(self) -> list[CallLog]:
        return self._ring.entries()

    def snapshot(self, cpu_s: float) -> Stats:
        return msgspec.structs.replace(
            self.stats, faults=dict(self.stats.faults), forgotten=self._tape.forgotten, cpu_s=cpu_s
        )

    def reset(self) -> None:
        """Forget everything but the calls in flight."""
        self._memory.clear()
        self._plan.clear()
        self._tape.clear()
        self._ring.clear()
        self.stats = Stats(in_flight=self.stats.in_flight)

    async def _ask(self, arrival: Arrival) -> Said:
        rng = draw(self._config.seed, "policy", arrival.prints[-1], arrival.asked)
        try:
            said = self._policy(arrival.call, rng)
            if inspect.isawaitable(said):
                said = await said
        except EngineRefused:
            raise
        except Exception as error:
            raise EngineUnavailable(f"the policy raised {type(error).__name__}: {error}") from error
        if not isinstance(said, Message | ModelReply):
            raise EngineUnavailable(f"the policy gave a {type(said).__name__}; it must give a Message or a ModelReply")
        return said

    def _spoken(self, arrival: Arrival, said: Said) -> ModelReply:
        call, conversation = arrival.call, arrival.prints[-1]
        reply = said if isinstance(said, ModelReply) else ModelReply(said, _finish(said))
        if self._voice is not None and PROMPT_IDS in call.extra:
            return self._voice.speak(call, reply, conversation)
        prompt = self._tape.prompt(call, arrival.prints)
        spoken: Spoken = self._tape.speak(reply.message, reply.finish, call, conversation)
        tokens = None
        if self._config.tokens:
            tokens = reply.tokens or self._tape.tokens(prompt, spoken, _routed_from(call))
        usage = Usage(sum(map(len, prompt)), len(spoken.ids))
        return msgspec.structs.replace(
            reply,
            message=spoken.message,
            finish=spoken.finish,
            usage=reply.usage if reply.usage.total_tokens else usage,
            tokens=tokens,
            model=reply.model or call.model,
        )

    def _latency(self, conversation: bytes, came: int) -> float:
        mean, jitter = self._config.latency_s, self._config.latency_jitter_s
        if jitter == 0.0:
            return mean
        return max(0.0, mean + jitter * draw(self._config.seed, "latency", conversation, came).uniform(-1.0, 1.0))


def _finish(message: Message) -> Finish:
    return Finish.TOOL_CALLS if message.tool_calls else Finish.STOP


def _routed_from(call: ModelCall) -> int:
    start = call.extra.get(ROUTED_FROM, 0)
    return start if isinstance(start, int) else 0


def _loggable(call: ModelCall) -> ModelCall:
    """A log says what was asked. How it was written is of no use there, and takes as much room again."""
    return msgspec.structs.replace(call, source=None)
