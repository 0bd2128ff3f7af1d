"""The message tree of a rollout while it grows.

Each message is stored once, under the message before it. A call is prepared (its intent is on record before the engine
is asked) and then committed or aborted, exactly once; a committed answer is a new node. The work of a turn depends on
what the turn adds. Nothing here awaits, so a cancellation cannot leave a turn half written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from secrets import token_hex

import msgspec

from rollwright.wire import CallRecord, Failure, Message, ModelReply, Node, Score, Stop, Timing, ToolSpec, Trace, Usage

from .phases import Phase, Phases
from .tape import Tapes


class LiveTrace:
    """One rollout's record in the making. Reads like a wire.Trace: `messages`, `reply`, `turns`, `usage`."""

    def __init__(
        self,
        task_id: str,
        attempt: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        policy_version: Callable[[], int] = int,
    ) -> None:
        """`policy_version` says what the engine serves now, for engines that do not tell it themselves."""
        self.task_id = task_id
        self.attempt = attempt
        self._key = token_hex(8)
        self.tools: tuple[ToolSpec, ...] = ()
        self.runtime = ""
        self.info: dict[str, str | int | float | bool | None] = {}
        self.usage = Usage()
        self.turns = 0
        self._clock = clock
        self._policy_version = policy_version
        self._began = clock()
        self._began_at = time.time()
        self._clockwork = Phases(clock)
        self._nodes: list[Node] = []
        self._children: dict[tuple[int, Message], list[int]] = {}
        self._nearest_call: list[int] = []
        self._calls: list[CallRecord] = []
        self._open: set[int] = set()
        self._tapes = Tapes()
        self._tip = -1
        self._shown: tuple[ToolSpec, ...] = ()
        self._inexact = ""
        """The first reason for which tokens prove nothing."""

    def __repr__(self) -> str:
        return f"<LiveTrace {self.task_id}#{self.attempt} {len(self._nodes)} messages, {len(self._calls)} calls>"

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation that was extended last."""
        return self.path(self._tip)

    @property
    def reply(self) -> str:
        for call in reversed(self._calls):
            if call.reply >= 0:
                return self._nodes[call.reply].message.text
        return ""

    @property
    def open_calls(self) -> int:
        """Calls that are under way."""
        return len(self._open)

    def path(self, node: int) -> tuple[Message, ...]:
        """The messages from the root to `node`."""
        found = []
        while node >= 0:
            found.append(self._nodes[node].message)
            node = self._nodes[node].parent
        return tuple(reversed(found))

    def extend(self, parent: int, messages: Sequence[Message]) -> int:
        """Put `messages` one after the other below `parent` (-1: a new root) and return the last one's node."""
        for message in messages:
            twins = self._children.get((parent, message))
            parent = twins[-1] if twins else self._add(parent, message, call=-1)
        self._tip = parent
        return parent

    def follow(self, nodes: list[int], messages: Sequence[Message]) -> tuple[list[int], int]:
        """Go on from any of `nodes` (-1: from the root) along `messages`: all nodes that the longest recorded prefix
        ends at, the newest last, and how many messages it covers."""
        for covered, message in enumerate(messages):
            # The same answer sampled twice is two nodes, and either may be the one that was continued.
            twins = [child for node in nodes for child in self._children.get((node, message), ())]
            if not twins:
                return nodes, covered
            nodes = twins
        return nodes, len(messages)

    def show(self, tools: tuple[ToolSpec, ...]) -> None:
        """Put on record which tools the model is shown. A program has its own; each name is kept once."""
        if tools is self._shown:
            return
        self._shown = tools
        known = {tool.name for tool in self.tools}
        self.tools += tuple(tool for tool in tools if tool.name not in known)

    def prepare(self, prompt: int, model: str) -> int:
        """Put on record that the engine is about to be asked, and return the call's number."""
        # If new weights come while the call is sampled, its later tokens are newer: staleness is never told too small.
        version = self._policy_version()
        self._calls.append(CallRecord(prompt=prompt, model=model, started_s=self._now(), policy_version=version))
        self._open.add(len(self._calls) - 1)
        return len(self._calls) - 1

    def names(self, call: int) -> tuple[str, str]:
        """The name of the call's answer, and of the answer that its prompt goes on after: unlike those of any trace."""
        return f"{self._key}/{call}", f"{self._key}/{self._nearest_call[self._calls[call].prompt]}"

    def commit(self, call: int, reply: ModelReply) -> int:
        """Put the answer on record, before anyone sees it, and return its node."""
        intent = self._close(call)
        tokens = None
        if reply.tokens is None:
            self._doubt(f"call {call} was answered without token ids")
        else:
            tokens = self._tapes.segment(call, self._nearest_call[intent.prompt], reply.tokens)
        node = self._add(intent.prompt, reply.message, call=call)
        self._calls[call] = msgspec.structs.replace(
            intent,
            reply=node,
            model=reply.model or intent.model,
            finish=reply.finish,
            usage=reply.usage,
            policy_version=reply.policy_version or intent.policy_version,
            ended_s=self._now(),
            tokens=tokens,
        )
        self.turns += 1
        self.usage += reply.usage
        self._tip = node
        return node

    def abort(self, call: int, failure: Failure, *, heard: bool = False) -> None:
        """Put on record that no answer came. `heard` says that part of one was seen: whoever saw it may act on tokens
        that are nowhere on record, so the rollout has lost a call."""
        intent = self._close(call)
        self._calls[call] = msgspec.structs.replace(intent, ended_s=self._now(), failure=failure)
        if heard:
            self._doubt(f"call {call} was cut after part of its answer was seen ({failure.kind})")

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Count the time of a block. Blocks may overlap, and each second counts once."""
        self._clockwork.enter(phase)
        try:
            yield
        finally:
            self._clockwork.leave(phase)

    def queued(self, seconds: float) -> None:
        """Of the phase that is running, `seconds` were spent waiting for a slot."""
        self._clockwork.queued(seconds)

    def freeze(
        self, stop: Stop, *, scores: dict[str, Score] | None = None, reward: float = 0.0, failure: Failure | None = None
    ) -> Trace:
        """The finished record. A call that is still open was lost, so its tokens prove nothing."""
        untrainable = self._untrainable()
        return Trace(
            task_id=self.task_id,
            attempt=self.attempt,
            nodes=tuple(self._nodes),
            calls=tuple(self._calls),
            tools=self.tools,
            stop=stop,
            scores=scores or {},
            reward=reward,
            failure=failure,
            trainable=not untrainable,
            untrainable=untrainable,
            timing=self._timing(),
            runtime=self.runtime,
            info=self.info,
        )

    def _doubt(self, reason: str) -> None:
        self._inexact = self._inexact or reason

    def _untrainable(self) -> str:
        if self._inexact:
            return self._inexact
        if self._open:
            return f"call {min(self._open)} was sent and its answer never came back"
        return "" if self.turns else "the model gave no answer"

    def _timing(self) -> Timing:
        spent = {phase.value: seconds for phase, seconds in self._clockwork.spent().items()}
        return Timing(started_at=self._began_at, total_s=self._now(), **spent)

    def _add(self, parent: int, message: Message, call: int) -> int:
        node = len(self._nodes)
        self._nodes.append(Node(parent, message, call))
        self._children.setdefault((parent, message), []).append(node)
        inherited = self._nearest_call[parent] if parent >= 0 else -1
        self._nearest_call.append(call if call >= 0 else inherited)
        return node

    def _close(self, call: int) -> CallRecord:
        if call not in self._open:
            raise ValueError(f"call {call} of {self!r} is not open; it is committed or aborted once")
        self._open.discard(call)
        return self._calls[call]

    def _now(self) -> float:
        return self._clock() - self._began
