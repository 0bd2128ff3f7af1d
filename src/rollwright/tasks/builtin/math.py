"""Competition mathematics with boxed answers: fractions, roots, intervals, expressions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rollwright.tasks.sources import Row
from rollwright.tasks.task import Task
from rollwright.tasks.taskset import Taskset
from rollwright.wire import UsageError

from .answers import BOXED_SYSTEM, MathTask, math_rows

DATASET = "EleutherAI/hendrycks_math"
SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)


class Math(Taskset, frozen=True):
    """Competition mathematics with boxed answers (MATH, by Hendrycks and others)."""

    name: ClassVar[str] = "math"

    source: str = "offline"
    """Where the problems come from: "offline" (our own small set), "hub" (EleutherAI/hendrycks_math), or the path of a
    JSONL or Parquet file with the columns problem and solution; an answer column, if any, beats the box in it."""
    split: str = "test"
    """Which split of the hub's dataset."""
    system: str = BOXED_SYSTEM
    """The system message; it asks for a boxed answer."""

    def tasks(self) -> Iterable[Task]:
        hub = [(DATASET, subject, self.split) for subject in SUBJECTS]
        for row in math_rows(self.source, "math", ("problem", "solution"), hub):
            yield MathTask(
                id=row["id"],
                prompt=str(row["problem"]),
                system=self.system,
                answer=_answer_of(row),
                solution=str(row["solution"]),
                info={"subject": str(row.get("subject") or row.get("type") or ""), "level": _level_of(row)},
            )


def _answer_of(row: Row) -> str:
    answer = str(row.get("answer") or boxed_in(str(row["solution"]))).strip()
    if not answer:
        raise UsageError(f"row {row['id']} has no answer: neither a column 'answer' nor a \\boxed{{}} in its solution")
    return answer


def _level_of(row: Row) -> int | None:
    """1 to 5. The hub's rows say "Level 3"."""
    level = str(row.get("level", "")).rpartition(" ")[2]
    return int(level) if level.isdecimal() else None


def boxed_in(solution: str) -> str:
    """What the last box of a reference solution holds; empty if it has none. Old solutions write `\\boxed 5`."""
    start = solution.rfind("\\boxed")
    inside = solution[start + len("\\boxed") :].lstrip() if start >= 0 else ""
    if not inside.startswith("{"):
        return inside[:1].strip("$")
    depth = 0
    for index, letter in enumerate(inside):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth == 0:
            return inside[1:index]
    return ""
