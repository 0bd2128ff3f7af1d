"""A taskset: where tasks come from. Order, limits and shuffling are the caller's; so is the thread it is read in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar

import msgspec

from rollwright.wire import RollwrightError, TaskBroken, UsageError

from .hooks import hooks_of
from .task import Task
from .toolset import Toolset


class Taskset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A source of tasks. Its fields are its settings; the docstring under each appears in `--help`."""

    name: ClassVar[str] = ""
    """What people call it; the class name if empty."""

    def tasks(self) -> Iterable[Task]:
        """The tasks, in an order that is the same every time. May read files; never runs on an event loop."""
        raise NotImplementedError(f"{type(self).__name__} has no method 'tasks'")

    def toolsets(self) -> Sequence[Toolset]:
        """Tools that all rollouts share, made anew for each run and opened with it."""
        return ()


def load_tasks(taskset: Taskset) -> list[Task]:
    """All tasks of `taskset`, checked: there are some, their ids are unique, their hooks make sense."""
    label = taskset.name or type(taskset).__name__
    try:
        tasks = list(taskset.tasks())
    except RollwrightError:
        raise
    except (Exception, SystemExit) as error:  # The border to the author's code.
        raise UsageError(f"taskset {label!r} could not be read: {type(error).__name__}: {error}") from error
    _check_tasks(label, tasks)
    return tasks


def _check_tasks(label: str, tasks: list[Task]) -> None:
    if not tasks:
        raise UsageError(f"taskset {label!r} has no tasks; check its source and split")
    for kind in {type(task) for task in tasks}:
        if not issubclass(kind, Task):
            raise UsageError(f"taskset {label!r} yields {kind.__name__}, which is not a Task")
        try:
            hooks_of(kind)
        except TaskBroken as error:
            raise UsageError(f"taskset {label!r} cannot be used: {error}") from error
    task_id, count = Counter(task.id for task in tasks).most_common(1)[0]
    if count > 1:
        raise UsageError(f"taskset {label!r} has {count} tasks with the id {task_id!r}; ids must be unique")
