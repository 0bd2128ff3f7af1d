"""A task: one row of work with its behaviour. It says nothing of where rows come from, and runs nothing by itself.

A task is frozen and serves many rollouts at once, so what changes during a rollout lives in `state`, a dict that is
fresh for each of them. Subclass `Task`, add fields for the data, add methods for the behaviour, and mark them:

    class Sum(Task, frozen=True):
        total: int

        @reward
        def correct(self, reply: str) -> bool:
            return str(self.total) in reply

Five methods count by their name alone: `setup` before the first model call, `respond` after each answer that asks for
no tool (return None to end, or the text or messages to go on with), `finalize` after the last one and before scoring,
`on_request` before each model call and `on_response` before its answer is seen (see `watching`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from rollwright.wire import Message, Usage, system, user


class TraceView(Protocol):
    """What a hook sees as `trace`: the rollout so far, or the finished one when it is scored."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation that was extended last."""
        ...

    @property
    def reply(self) -> str:
        """The text of the last answer; empty if there was none."""
        ...

    @property
    def usage(self) -> Usage: ...

    @property
    def turns(self) -> int:
        """Answers the model has given."""
        ...


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One row of work. Subclasses add fields and hooks."""

    id: str
    """Unique within its taskset, and the same in every run: results and resumption go by it."""
    prompt: str | tuple[Message, ...] = ""
    """What the model is asked: one user message, or a whole opening conversation."""
    system: str = ""
    """A system message before the prompt, if any."""
    info: dict[str, str | int | float | bool | None] = {}
    """Facts about the task that its traces should carry, such as level or subject."""

    def opening(self) -> tuple[Message, ...]:
        """The messages a rollout begins with."""
        asked = (user(self.prompt),) if isinstance(self.prompt, str) else self.prompt
        return (system(self.system), *asked) if self.system else asked

    def runtime_settings(self) -> Mapping[str, Any]:
        """Settings of the box that this task needs over those of the run, such as its image. Rollouts whose boxes are
        alike share them where boxes are pooled."""
        return {}

    def limit_settings(self) -> Mapping[str, Any]:
        """Limits of this task's rollouts over those of the run, such as its `timeout_s`."""
        return {}

    def oracle(self, messages: Sequence[Message]) -> Message | None:
        """The ideal next answer, for the scripted engine and self-checks; None if the task knows none."""
        return None
