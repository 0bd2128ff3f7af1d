"""Programs that drive the model from inside a box: what every one of them is told, and how its end is read.

A program finds its model behind the door of its rollout and is alone with it: we start it and wait. Where a call of it
was refused or failed, the rollout tells so, whatever the program makes of it. What one kind of program needs (words,
variables, how it says that it is done) is in that kind's file.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

import msgspec

from rollwright.runtimes import Ending, ExecResult, Runtime
from rollwright.tasks import Task
from rollwright.traces import Phase
from rollwright.wire import HarnessError, Stop, Text

from .contract import Door, Surroundings
from .session import Session

FOREVER_S = 30 * 86400.0
"""A program's own deadline. The rollout's clock runs out long before it, and ends the program then."""
GRACE_S = 10.0
"""How long a program may go on after it was told that no call will be made any more."""
_LAST_WORDS = 1500


class HarnessConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every harness has: a kind."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended."""

    stop: Stop = Stop.FINISHED
    trouble: str = ""
    """What went wrong, in its own words; empty if it did its work."""


class ProgramHarness:
    """Runs one program per rollout. A kind says how, in `drive`."""

    needs_runtime = True
    needs_door = True
    kind = "program"
    takes_tools = False
    """Whether its program is told where it finds tools by MCP."""

    async def run(self, session: Session, around: Surroundings) -> Stop:
        if around.door is None:
            raise HarnessError(f"harness {self.kind!r} needs a door to its model, and its rollout opened none")
        self._check(around)
        runtime = cast(Runtime, around.supplies()["runtime"])
        with around.trace.phase(Phase.TOOL):
            outcome = await _until_over(self, session, runtime, around)
        trouble = outcome.trouble
        if not trouble and not session.trace.turns:
            trouble = "it ended without an answer from its model"
        if trouble:
            raise HarnessError(f"{self.kind}: {trouble}")
        return outcome.stop

    async def drive(self, runtime: Runtime, door: Door, model: str, task: Task) -> Outcome:
        """Run the program to its end. Cancelled, it ends the program."""
        raise NotImplementedError

    def _check(self, around: Surroundings) -> None:
        """A program talks to its model alone: nobody can answer it from outside, or hear of tools it does not have."""
        hooks, task = around.hooks, around.task
        if hooks.respond is not None:
            raise HarnessError(f"task {task.id!r} answers its model (respond), which only the chat harness can carry")
        if around.tools.specs and not self.takes_tools:
            raise HarnessError(f"task {task.id!r} comes with tools, which harness {self.kind!r} cannot offer")


async def _until_over(harness: ProgramHarness, session: Session, runtime: Runtime, around: Surroundings) -> Outcome:
    """Wait for the program, and end it where it does not take no for an answer."""
    assert around.door is not None
    driving = asyncio.create_task(
        harness.drive(runtime, around.door, session.model, around.task), name=f"{harness.kind} in {runtime.name}"
    )
    over = asyncio.create_task(session.over.wait(), name=f"end of {runtime.name}'s calls")
    try:
        await asyncio.wait({driving, over}, return_when=asyncio.FIRST_COMPLETED)
        if not driving.done():
            await asyncio.wait({driving}, timeout=GRACE_S)
        if not driving.done():
            return Outcome()
        return driving.result()
    finally:
        over.cancel()
        driving.cancel()
        # Its end is the end of the program, which is bounded by the box.
        await asyncio.wait({driving, over})


def trouble_of(result: ExecResult) -> str:
    """What a program says that did not end well; empty if it did."""
    if result.ok:
        return ""
    how = "ran out of time" if result.ending is Ending.TIMED_OUT else f"ended with {result.exit_code}"
    return f"{how}; {last_words(result)}"


def last_words(result: ExecResult) -> str:
    """The end of what it printed, bounded."""
    for name, said in (("stderr", result.stderr), ("stdout", result.stdout)):
        text = said.decode("utf-8", "replace").strip()
        if text:
            return f"the end of its {name}: {text[-_LAST_WORDS:]}"
    return "it printed nothing"


def spoken(task: Task) -> list[tuple[str, str]]:
    """The opening of a task as roles and texts."""
    said: list[tuple[str, str]] = []
    for message in task.opening():
        if any(not isinstance(part, Text) for part in message.parts):
            raise HarnessError(f"the opening of task {task.id!r} is more than text, which a program cannot be told")
        said.append((message.role, message.text))
    return said


def asked(task: Task) -> tuple[str, str]:
    """What a program is told: standing instructions, and the one thing to do."""
    said = spoken(task)
    if any(role not in ("system", "user") for role, _ in said):
        raise HarnessError(f"task {task.id!r} begins in the middle of a conversation, which only chat and bash can do")
    system = "\n\n".join(text for role, text in said if role == "system")
    return system, "\n\n".join(text for role, text in said if role == "user")
