"""What the three mathematics sets share: a task with one right answer, and the script that judges it in the runtime."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal

from rollwright.runtimes import Runtime
from rollwright.runtimes.contract import Ending
from rollwright.tasks.marks import metric, reward
from rollwright.tasks.sources import Row, hub_rows, read_rows
from rollwright.tasks.task import Task
from rollwright.wire import Message, TaskBroken, assistant

# In a folder of its own: a program finds its neighbours first, and `math.py` beside it would hide the real `math`.
VERIFIER = Path(__file__).parent / "scripts" / "verify_math.py"
VERIFY_TIMEOUT_S = 20.0
ANSWER_CHARS = 20_000
"""How much of the end of an answer is judged. It travels on argv, where Linux takes 128 KiB for one argument."""

_UNSAYABLE = re.compile("[\0\ud800-\udfff]")

BOXED_SYSTEM = "Solve the problem step by step. Put the final answer, and nothing else, inside \\boxed{}."


class MathTask(Task, frozen=True):
    """A problem with one answer. The answer is judged by `math-verify`, inside the runtime."""

    answer: str
    solution: str = ""
    style: ClassVar[Literal["number", "boxed"]] = "boxed"

    @reward
    async def correct(self, reply: str, state: dict[str, Any], runtime: Runtime) -> float:
        return (await self._verdict(reply, state, runtime))[0]

    @metric
    async def verify_timed_out(self, reply: str, state: dict[str, Any], runtime: Runtime) -> bool:
        return (await self._verdict(reply, state, runtime))[1]

    async def _verdict(self, reply: str, state: dict[str, Any], runtime: Runtime) -> tuple[float, bool]:
        """The score, and whether the judge ran out of time: an answer that no one can evaluate is a wrong one.
        Judged once; hooks share the verdict through `state`."""
        if "verdict" not in state:
            state["verdict"] = await self._judge(reply, runtime)
        verdict: tuple[float, bool] = state["verdict"]
        return verdict

    async def _judge(self, reply: str, runtime: Runtime) -> tuple[float, bool]:
        if not reply.strip():
            return 0.0, False
        args = [self.style, self.answer, sayable(reply)]
        result = await runtime.run_script(VERIFIER, args, timeout_s=VERIFY_TIMEOUT_S, warm=True)
        if result.ending is Ending.TIMED_OUT:
            return 0.0, True
        verdict = result.text.strip()
        if not result.ok or verdict not in ("0.0", "1.0"):
            said = result.stderr.decode("utf-8", "replace").strip() or verdict or "it said nothing"
            why = said.splitlines()[-1][:300]
            raise TaskBroken(f"the verifier of task {self.id!r} ended with code {result.exit_code}: {why}")
        return float(verdict), False

    def oracle(self, messages: Sequence[Message]) -> Message | None:
        return assistant(self.solution or f"The answer is $\\boxed{{{self.answer}}}$.")


def sayable(reply: str) -> str:
    """The end of a reply, without the characters that no argument of a program can hold."""
    return _UNSAYABLE.sub("\ufffd", reply[-ANSWER_CHARS:])


def math_rows(source: str, name: str, columns: Sequence[str], hub: Sequence[tuple[str, str, str]]) -> list[Row]:
    """Rows from where the person said: our own offline set, the hub (dataset, config, split), or a file. Each row
    gets an `id`, made from its place where the data has none."""
    if source == "offline":
        with resources.as_file(resources.files("rollwright.tasks.builtin") / "data" / f"{name}.jsonl") as path:
            rows = read_rows(path, columns)
    elif source == "hub":
        rows = [
            {"id": "-".join(filter(None, (name, config, split, f"{index:05d}"))), **row}
            for dataset, config, split in hub
            for index, row in enumerate(hub_rows(dataset, config, split, columns))
        ]
    else:
        rows = read_rows(Path(source).expanduser(), columns)
    return [{**row, "id": str(row.get("id") or f"{name}-{index:05d}")} for index, row in enumerate(rows)]
