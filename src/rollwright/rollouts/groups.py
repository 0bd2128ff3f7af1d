"""The group stage: n rollouts of one task are over, and are scored together where the task asks for it.

Until that is done a `Member` keeps what its rollout left behind: its state, and the conversation, which a group reward
may go on with. Afterwards nobody can add to it. What a group with failed rollouts is worth is a setting.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec

from rollwright.harnesses import Limits, Session
from rollwright.tasks import GroupSettings, Task, call_group, hooks_of
from rollwright.wire import EngineRefused, Failure, Message, RolloutError, Score, Stop, TaskBroken, Trace, user

from .rollout import Finished, weighted, within

_HOPELESS = frozenset({TaskBroken.__name__, EngineRefused.__name__})
"""Failures that another try repeats."""


class GroupBroken(RolloutError):
    """A rollout finished, but others of its group did not, and the group is only worth something whole."""


class Member:
    """One rollout of a group, until the group is scored."""

    def __init__(self, trace: Trace, state: dict[str, Any], session: Session | None = None) -> None:
        self.trace = trace
        """As it stands now."""
        self.state = state
        self._session = session

    def __repr__(self) -> str:
        return f"<Member {self.trace.task_id}#{self.trace.attempt}, {len(self.trace.nodes)} messages>"

    async def go_on(self, *said: str | Message) -> str:
        """Say more to the model, hear its answer, and have both in the transcript. What is left of the rollout's
        limits holds: TaskBroken when they are spent, or when the group is over."""
        if self._session is None:
            raise TaskBroken(f"{self!r} is over and cannot go on")
        conversation = self._session.resume(self.trace.messages)
        conversation.say(*(user(one) if isinstance(one, str) else one for one in said))
        reply = await self._session.sample(conversation)
        if isinstance(reply, Stop):
            raise TaskBroken(f"{self!r} cannot go on: {reply.value}")
        self._renew()
        return reply.message.text

    def release(self) -> None:
        """The group is over: nothing is added from now on, not even by whoever still holds this."""
        if self._session is not None:
            self._session.stop(Stop.TASK_STOPPED)
            self._session = None
        self.state = {}

    def _renew(self) -> None:
        assert self._session is not None
        old = self.trace
        self.trace = self._session.trace.freeze(old.stop, scores=old.scores, reward=old.reward, failure=old.failure)


Attempt = Callable[[ExitStack], Awaitable[tuple[Finished, Session | None]]]
"""Runs a rollout; what it keeps until its group is over is put on the stack."""


async def seated(run: Attempt, kept: ExitStack, retries: int) -> Member:
    """A member, after as many tries as it takes and may take. What a failed try kept is let go at once."""
    while True:
        own = ExitStack()
        kept.push(own)
        finished, session = await run(own)
        failure = finished.trace.failure
        if failure is None or retries <= 0 or failure.kind in _HOPELESS:
            member = Member(finished.trace, finished.state, session if failure is None else None)
            own.callback(member.release)
            return member
        own.close()
        retries -= 1


async def score_group(
    task: Task, members: Sequence[Member], earlier: Sequence[Trace], settings: GroupSettings, limits: Limits
) -> list[Trace]:
    """The members' traces with the group's scores. A group reward that breaks fails each of them."""
    hooks = hooks_of(type(task)).group_rewards
    # One that was cancelled on its own is no part of the group any more, and no failure of it.
    whole = [member for member in members if member.trace.failure is None and member.trace.stop is not Stop.CANCELLED]
    if not hooks or not whole:
        return [member.trace for member in members]
    if settings.partial != "score" and any(member.trace.failure is not None for member in members):
        return _dropped(members)
    scored = [*(Member(trace, {}) for trace in earlier), *whole]
    try:
        calling = call_group(hooks, task, [m.trace for m in scored], [m.state for m in scored], scored)
        scores = await within(limits.score_timeout_s, calling, TaskBroken, "scoring the group")
    except RolloutError as error:
        failure = Failure.of(error)
        return [_failed(member.trace, failure) for member in members]
    added = {id(member): extra for member, extra in zip(scored, scores, strict=True)}
    return [_with_scores(member.trace, added.get(id(member))) for member in members]


def _dropped(members: Sequence[Member]) -> list[Trace]:
    culprit = next(member.trace for member in members if member.trace.failure is not None)
    assert culprit.failure is not None
    words = f"{culprit.task_id}#{culprit.attempt} of its group failed: {culprit.failure.message}"
    failure = Failure.of(GroupBroken(words), culprit.failure.layer)
    return [_failed(member.trace, failure) for member in members]


def _failed(trace: Trace, failure: Failure) -> Trace:
    return msgspec.structs.replace(trace, failure=trace.failure or failure, stop=Stop.FAILED)


def _with_scores(trace: Trace, extra: dict[str, Score] | None) -> Trace:
    if not extra:
        return trace
    scores = {**trace.scores, **extra}
    return msgspec.structs.replace(trace, scores=scores, reward=weighted(scores))
