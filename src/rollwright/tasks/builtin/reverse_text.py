"""Say a text backwards. Judged by likeness in this process: no runtime is needed, so it is the cheapest set to run."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import ClassVar

from rollwright.tasks.marks import metric, reward
from rollwright.tasks.task import Task
from rollwright.tasks.taskset import Taskset
from rollwright.wire import Message, UsageError, assistant

from .words import ANSWERS

SYSTEM = "Reverse the text character by character. Answer with <reversed>...</reversed> and nothing else."
_TAGGED = re.compile(r"<reversed>(.*?)</reversed>", re.DOTALL)
_SPARE_CHARS = 200
"""How much longer than the right answer a reply may be before the rest no longer counts as text to compare."""


class ReverseTextTask(Task, frozen=True):
    text: str

    @reward
    def likeness(self, reply: str) -> float:
        """1.0 for the reversed text, and less the less of it is there."""
        target = self.text[::-1]
        said = said_in(reply)[: len(target) + _SPARE_CHARS]
        return SequenceMatcher(None, said, target, autojunk=False).ratio()

    @metric
    def exact(self, reply: str) -> bool:
        return said_in(reply) == self.text[::-1]

    def oracle(self, messages: Sequence[Message]) -> Message | None:
        return assistant(f"<reversed>{self.text[::-1]}</reversed>")


class ReverseText(Taskset, frozen=True):
    """Short texts to be said backwards."""

    name: ClassVar[str] = "reverse-text"

    count: int = 500
    """How many texts."""
    min_words: int = 2
    """Fewest words of a text."""
    max_words: int = 6
    """Most words of a text."""
    seed: int = 0
    """Which texts: the same seed gives the same ones."""

    def tasks(self) -> Iterable[Task]:
        if not 1 <= self.min_words <= self.max_words:
            raise UsageError(
                f"reverse-text needs 1 <= min_words <= max_words, not {self.min_words} and {self.max_words}"
            )
        for index in range(self.count):
            # One generator for each text: the first hundred are the same whether a hundred are asked for or a thousand.
            draw = random.Random(f"reverse-text {self.seed} {index}")
            text = " ".join(draw.choices(ANSWERS, k=draw.randint(self.min_words, self.max_words)))
            yield ReverseTextTask(id=f"reverse-text-{self.seed}-{index:05d}", prompt=text, system=SYSTEM, text=text)


def said_in(reply: str) -> str:
    """The tagged text, or the whole reply of a model that forgot the tags."""
    tagged = _TAGGED.findall(reply)
    return (tagged[-1] if tagged else reply).strip()
