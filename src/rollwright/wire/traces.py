"""The finished record of one rollout, as it crosses processes and lies on disk."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from .arrays import Ids, Logprobs, Mask, check_column
from .calls import Finish, Routing, Usage
from .errors import Failure, WireError
from .messages import Message, ToolSpec


class Stop(StrEnum):
    """Why a rollout ended."""

    FINISHED = "finished"
    TASK_STOPPED = "task_stopped"
    TURNS_SPENT = "turns_spent"
    TOKENS_SPENT = "tokens_spent"
    TIME_SPENT = "time_spent"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Node(msgspec.Struct, frozen=True, gc=False):
    """One message in the tree. `parent` is the index of the message before it, -1 at a root."""

    parent: int
    message: Message
    call: int = -1
    """The call that sampled this message; -1 if the model did not say it."""


class TokenSegment(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The tokens that one call added to a tape. The tape of call c is the tape of `base` followed by this segment;
    with `base` -1 the segment is the whole tape. The engine received the tape up to the first sampled id, and sampled
    the rest."""

    base: int
    ids: Ids
    sampled: Mask
    logprobs: Logprobs
    """0 where not sampled."""
    routing: Routing | None = None

    def __post_init__(self) -> None:
        check_column(self.ids, "i4", "ids")
        check_column(self.sampled, "b1", "the sampled mask")
        check_column(self.logprobs, "f4", "logprobs")
        if not len(self.ids) == len(self.sampled) == len(self.logprobs):
            lengths = f"{len(self.ids)} ids, {len(self.sampled)} mask, {len(self.logprobs)} logprobs"
            raise WireError(f"columns differ in length: {lengths}")


class CallRecord(msgspec.Struct, frozen=True, gc=False):
    """One model call of the rollout, answered or not."""

    prompt: int
    """Node of the last message the model was shown."""
    reply: int = -1
    """Node of the answer; -1 if none was committed."""
    model: str = ""
    finish: Finish | None = None
    usage: Usage = Usage()
    policy_version: int = 0
    started_s: float = 0.0
    """Seconds since the rollout began."""
    ended_s: float = 0.0
    tokens: TokenSegment | None = None
    failure: Failure | None = None


class Timing(msgspec.Struct, frozen=True, gc=False):
    """Seconds per phase. Phases do not overlap within a rollout."""

    started_at: float = 0.0
    """Unix time."""
    queue_s: float = 0.0
    provision_s: float = 0.0
    setup_s: float = 0.0
    model_s: float = 0.0
    tool_s: float = 0.0
    score_s: float = 0.0
    total_s: float = 0.0


class Score(msgspec.Struct, frozen=True, gc=False):
    """One named number that a task gave. Metrics have weight 0."""

    value: float
    weight: float = 0.0


class Trace(msgspec.Struct, frozen=True, gc=False):
    """All that happened in one rollout."""

    task_id: str
    attempt: int
    nodes: tuple[Node, ...] = ()
    calls: tuple[CallRecord, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    stop: Stop = Stop.FINISHED
    scores: dict[str, Score] = {}
    reward: float = 0.0
    """The weighted sum of the scores."""
    failure: Failure | None = None
    trainable: bool = True
    """False where the tokens cannot be proven exact."""
    untrainable: str = ""
    """Why not, in one sentence; empty where it is trainable."""
    timing: Timing = Timing()
    runtime: str = ""
    """The box it ran in, pooled or not; empty if it needed none."""
    info: dict[str, str | int | float | bool | None] = {}

    @property
    def key(self) -> tuple[str, int]:
        return self.task_id, self.attempt

    @property
    def usage(self) -> Usage:
        total = Usage()
        for call in self.calls:
            total += call.usage
        return total

    @property
    def turns(self) -> int:
        """Answers the model has given."""
        return sum(call.reply >= 0 for call in self.calls)

    @property
    def leaves(self) -> tuple[int, ...]:
        """The last message of each branch, oldest first."""
        parents = {node.parent for node in self.nodes}
        return tuple(index for index in range(len(self.nodes)) if index not in parents)

    def path(self, node: int) -> tuple[Message, ...]:
        """The messages from the root to `node`."""
        return tuple(self.nodes[index].message for index in reversed(list(self._ancestors(node))))

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation that was extended last."""
        return self.path(len(self.nodes) - 1)

    @property
    def reply(self) -> str:
        """The text of the last answer; empty if there was none."""
        for call in reversed(self.calls):
            if call.reply >= 0:
                return self.nodes[call.reply].message.text
        return ""

    def _ancestors(self, node: int) -> Iterator[int]:
        while node >= 0:
            yield node
            node = self.nodes[node].parent
