"""Rollwright runs the rollouts that reinforcement learning on language models feeds on.

What an environment author needs is here by name; the rooms hold the rest. Names are looked up when they are first used,
so that `import rollwright` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .harnesses import ChatHarness as ChatHarness
    from .rollouts import Environment as Environment
    from .tasks import Task as Task
    from .tasks import Taskset as Taskset
    from .tasks import group_reward as group_reward
    from .tasks import metric as metric
    from .tasks import reward as reward
    from .tasks import stop as stop
    from .tasks import tool as tool

_HOMES = {
    "ChatHarness": "harnesses",
    "Environment": "rollouts",
    "Task": "tasks",
    "Taskset": "tasks",
    "group_reward": "tasks",
    "metric": "tasks",
    "reward": "tasks",
    "stop": "tasks",
    "tool": "tasks",
}
__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604 - the names are in the table above


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'rollwright' has no attribute {name!r}")
    return getattr(import_module(f".{home}", __name__), name)
