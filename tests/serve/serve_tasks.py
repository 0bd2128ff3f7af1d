"""Tasks whose id tells the worker what to do."""

from rollwright.tasks import Task


class Play(Task, frozen=True):
    """A task without hooks."""


def play(task_id: str) -> Play:
    return Play(id=task_id)
