"""A small taskset in a file, and the command run as people run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forked import python

SUMS = '''
"""Sums that can be told to fail, to wait, and to say which loop they run on."""

import asyncio
import fcntl
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from rollwright.tasks import Task, Taskset, metric, reward
from rollwright.wire import Message, assistant


def wait_for(path: str) -> None:
    with open(path) as gate:
        fcntl.flock(gate, fcntl.LOCK_SH)


class Sum(Task):
    total: int
    broken: bool = False
    started: str = ""
    gate: str = ""
    loop_file: str = ""

    async def setup(self) -> None:
        if self.started:
            with open(self.started, "w") as fifo:
                fifo.write(self.id + "\\n")
        if self.gate == "closed":
            await asyncio.sleep(3600)
        elif self.gate:
            await asyncio.to_thread(wait_for, self.gate)

    async def finalize(self) -> None:
        if self.loop_file:
            kind = type(asyncio.get_running_loop())
            Path(self.loop_file).write_text(f"{kind.__module__}.{kind.__name__}")

    @reward
    def correct(self, reply: str) -> bool:
        if self.broken:
            raise ValueError("the answer key is\\nupside down")
        return reply == str(self.total)

    @metric
    def letters(self, reply: str) -> int:
        return len(reply)

    def oracle(self, messages: Sequence[Message]) -> Message:
        return assistant(str(self.total))


class Sums(Taskset):
    """Sums of small numbers."""

    count: int = 30
    """How many sums."""
    broken: int = 0
    """How many of them cannot be scored."""
    op: Literal["plus", "and"] = "plus"
    """The word between the numbers."""
    names: tuple[str, ...] = ()
    """Names for the tasks."""
    started: str = ""
    """A FIFO that each rollout writes its id to."""
    gate: str = ""
    """A file that each rollout waits for, as long as somebody holds its lock; "closed" waits for ever."""
    loop_file: str = ""
    """Where the kind of the event loop is written."""

    def tasks(self) -> Iterable[Task]:
        for n in range(self.count):
            yield Sum(
                id=f"sum-{n}",
                prompt=f"What is {n} {self.op} 1?",
                total=n + 1,
                broken=n < self.broken,
                started=self.started,
                gate=self.gate,
                loop_file=self.loop_file,
            )
'''


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with the taskset sums.py in it."""
    (tmp_path / "sums.py").write_text(SUMS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROLLWRIGHT_DEBUG", raising=False)
    return tmp_path


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "rollwright", *argv]


def ask(*argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, in the current directory. Each verb also begins as people begin it (`command`)
    somewhere in these tests; here it is forked, since importing takes longer than what it does."""
    return python("-m", "rollwright", *argv, env={**os.environ, **(env or {})})
