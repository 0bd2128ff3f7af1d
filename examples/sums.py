"""A taskset in twenty lines: sums of two numbers. Copy it, change the task, run it offline:

rollwright eval examples/sums.py -n 20

The fields of `Sums` are its settings (`--help` shows them). `SumTask` is one row of work: the answer is judged by the
method marked `@reward`, which asks by name for what it needs: `reply`, `trace`, `state`, `runtime`. `oracle` is what a
perfect model would say; the scripted engine plays it, so the whole path can be tried with no model at all.
"""

from collections.abc import Iterable, Sequence

from rollwright.tasks import Task, Taskset, reward
from rollwright.wire import Message, assistant


class SumTask(Task, frozen=True):
    total: int

    @reward
    def correct(self, reply: str) -> bool:
        return reply.split()[-1:] == [str(self.total)]

    def oracle(self, messages: Sequence[Message]) -> Message:
        return assistant(f"The sum is {self.total}")


class Sums(Taskset, frozen=True):
    largest: int = 20
    """The largest number to add."""

    def tasks(self) -> Iterable[Task]:
        for a in range(1, self.largest + 1):
            for b in range(a, self.largest + 1):
                yield SumTask(id=f"{a}+{b}", prompt=f"What is {a} + {b}? End with the number.", total=a + b)
