"""Grade-school word problems with whole-number answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

from rollwright.tasks.task import Task
from rollwright.tasks.taskset import Taskset
from rollwright.wire import UsageError

from .answers import MathTask, math_rows

SYSTEM = "Solve the problem step by step. End with the final answer as a number on its own line, like this:\n#### 42"


class Gsm8kTask(MathTask, frozen=True):
    style: ClassVar[Literal["number", "boxed"]] = "number"


class Gsm8k(Taskset, frozen=True):
    """Grade-school word problems (GSM8K)."""

    name: ClassVar[str] = "gsm8k"

    source: str = "offline"
    """Where the problems come from: "offline" (our own small set), "hub" (openai/gsm8k), or the path of a JSONL or
    Parquet file with the columns question and answer."""
    split: str = "test"
    """Which split of the hub's dataset."""
    system: str = SYSTEM
    """The system message; it asks for the final answer after ####."""

    def tasks(self) -> Iterable[Task]:
        rows = math_rows(self.source, "gsm8k", ("question", "answer"), [("openai/gsm8k", "main", self.split)])
        for row in rows:
            worked = str(row["answer"])
            answer = worked.rpartition("####")[2].strip()
            if not answer:
                raise UsageError(f"the answer of {row['id']} in {self.source} has nothing after ####")
            yield Gsm8kTask(
                id=row["id"],
                prompt=str(row["question"]),
                system=self.system,
                answer=answer,
                solution=worked if "####" in worked else f"#### {answer}",
            )
