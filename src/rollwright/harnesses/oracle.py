"""Not a model but the task's own solution, in the place of one: a task that it does not solve is broken, and a run with
it says which are. No model call is made."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from rollwright.traces import Phase
from rollwright.wire import HarnessError, RolloutError, Stop

from .contract import Surroundings
from .programs import HarnessConfig
from .session import Session


class OracleConfig(HarnessConfig, frozen=True, kw_only=True, tag_field="kind", tag="oracle"):
    """The task's own solution instead of a model, to check tasks."""


@runtime_checkable
class Solvable(Protocol):
    async def solve(self, runtime: Any) -> None:
        """Do in the box what an ideal agent would do."""
        ...


class OracleHarness:
    needs_runtime = True
    needs_door = False

    async def run(self, session: Session, around: Surroundings) -> Stop:
        task = around.task
        if not isinstance(task, Solvable):
            raise HarnessError(f"task {task.id!r} knows no solution of its own (it has no method 'solve')")
        with around.trace.phase(Phase.TOOL):
            try:
                await task.solve(around.supplies()["runtime"])
            except RolloutError:
                raise
            except Exception as error:  # The border to the author's code.
                raise HarnessError(f"the solution of {task.id!r} raised {type(error).__name__}: {error}") from error
        return Stop.FINISHED
