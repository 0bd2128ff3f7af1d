"""Work in a box: files that an agent has to write. Run it offline with the agent that comes with Rollwright:

rollwright eval examples/notes.py --harness bash -n 4

The box is asked for by naming `runtime`; the reward looks at what the agent left there. `oracle` plays the model with
the one tool that the agent has, so that the whole path can be tried with no model at all. A real model needs no oracle,
and then any other harness will do, too: `--harness codex`, `--harness claude-code`, ...
"""

import json
from collections.abc import Iterable, Sequence

from rollwright.runtimes import Runtime
from rollwright.tasks import Task, Taskset, reward
from rollwright.wire import Message, RuntimeFault, ToolCall, assistant


class Note(Task, frozen=True):
    line: str

    @reward
    async def written(self, runtime: Runtime) -> bool:
        try:
            return (await runtime.read("note.txt")).decode() == f"{self.line}\n"
        except RuntimeFault:
            return False

    def oracle(self, messages: Sequence[Message]) -> Message:
        steps = [f"echo {self.line} > note.txt", "cat note.txt"]
        done = sum(bool(message.tool_calls) for message in messages)
        if done == len(steps):
            return assistant("The note is written.")
        return assistant("", ToolCall(f"step-{done}", "bash", json.dumps({"command": steps[done]})))


class Notes(Taskset, frozen=True):
    count: int = 20
    """How many notes."""

    def tasks(self) -> Iterable[Task]:
        for number in range(self.count):
            line = f"note-{number * number}"
            yield Note(id=line, prompt=f"Write the line {line} into note.txt and nothing else.", line=line)
