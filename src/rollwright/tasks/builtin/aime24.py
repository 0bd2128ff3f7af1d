"""Competition problems whose answers are integers from 0 to 999."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rollwright.tasks.task import Task
from rollwright.tasks.taskset import Taskset

from .answers import BOXED_SYSTEM, MathTask, math_rows


class Aime24(Taskset, frozen=True):
    """Competition problems with integer answers from 0 to 999 (AIME 2024)."""

    name: ClassVar[str] = "aime24"

    source: str = "offline"
    """Where the problems come from: "offline" (our own small set), "hub" (HuggingFaceH4/aime_2024), or the path of a
    JSONL or Parquet file with the columns problem and answer."""
    split: str = "train"
    """Which split of the hub's dataset."""
    system: str = BOXED_SYSTEM
    """The system message; it asks for a boxed answer."""

    def tasks(self) -> Iterable[Task]:
        hub = [("HuggingFaceH4/aime_2024", "", self.split)]
        for row in math_rows(self.source, "aime24", ("problem", "answer"), hub):
            answer = str(row["answer"]).strip()
            solution = str(row.get("solution") or "")
            yield MathTask(
                id=row["id"],
                prompt=str(row["problem"]),
                system=self.system,
                answer=answer,
                solution=f"{solution}\n\nThe answer is $\\boxed{{{answer}}}$.".strip(),
            )
