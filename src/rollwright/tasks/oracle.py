"""Answers of tasks that know them, for the scripted engine, which sees conversations and knows no tasks.

A conversation is recognised by what it begins with. Tasks that begin alike (a game whose secret is hidden) share an
oracle, which therefore may only use what the conversation shows; the first of them answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollwright.wire import Message

from .registry import make_taskset
from .task import Task
from .taskset import load_tasks

Opening = tuple[tuple[str, str], ...]


def solver(options: Mapping[str, Any]) -> Callable[[Sequence[Message]], Message | None]:
    """A policy that plays the oracle of a taskset: `{"taskset": name, "options": {...}}`."""
    tasks = load_tasks(make_taskset(str(options["taskset"]), options.get("options") or {}))
    return Solver(tasks)


class Solver:
    """Finds the task that a conversation belongs to, in time that does not depend on the number of tasks."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._by_opening: dict[Opening, Task] = {}
        for task in tasks:
            self._by_opening.setdefault(_said(task.opening()), task)
        self._lengths = sorted({len(opening) for opening in self._by_opening}, reverse=True)

    def __call__(self, messages: Sequence[Message]) -> Message | None:
        task = self.find(messages)
        return task.oracle(messages) if task else None

    def find(self, messages: Sequence[Message]) -> Task | None:
        said = _said(messages)
        for length in self._lengths:
            task = self._by_opening.get(said[:length])
            if task:
                return task
        return None


def _said(messages: Sequence[Message]) -> Opening:
    """Roles and texts. System messages are left out: dialects and harnesses move, merge and add them."""
    return tuple((message.role, message.text) for message in messages if message.role != "system")
