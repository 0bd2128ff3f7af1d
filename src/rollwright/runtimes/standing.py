"""What every kind asks before it acts: where the box stands between its making and its end, and whether words are a
command. It changes in plain code, which no cancellation tears; what is done at each step is the kind's own work."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from rollwright.wire import RuntimeFault, RuntimeLost


class State(Enum):
    NEW = "not started"
    STARTING = "starting"
    RUNNING = "running"
    RESETTING = "being reset"
    LOST = "broken"
    STOPPED = "stopped"


class Standing:
    """Of the box called `name`. A box starts once, and what is lost or stopped stays so; `str` is for status lines."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.state = State.NEW

    def __str__(self) -> str:
        return self.state.value

    @property
    def running(self) -> bool:
        return self.state is State.RUNNING

    def begin_start(self) -> None:
        if self.state is not State.NEW:
            raise RuntimeFault(f"box {self._name} is {self}; a box starts once")
        self.state = State.STARTING

    def begin_reset(self) -> None:
        self.check_running()
        self.state = State.RESETTING

    def end_start(self) -> None:
        self._arrive(State.STARTING)

    def end_reset(self) -> None:
        self._arrive(State.RESETTING)

    def stop(self) -> None:
        self.state = State.STOPPED

    def lose(self) -> None:
        """It can only be stopped from now on."""
        if self.state is not State.STOPPED:
            self.state = State.LOST

    def check_running(self) -> None:
        if self.state is not State.RUNNING:
            raise RuntimeLost(f"box {self._name} is {self}")

    def _arrive(self, was: State) -> None:
        if self.state is not was:
            raise RuntimeLost(f"box {self._name} is {self}; it was {was.value} before")
        self.state = State.RUNNING


def check_argv(argv: Sequence[str]) -> None:
    """RuntimeFault where `argv` is no command: a string, nothing, an option first, or words with a NUL byte."""
    if isinstance(argv, str) or not argv or not argv[0] or argv[0].startswith("-"):
        raise RuntimeFault(f"a command is a list of words that begins with a program, not {argv!r}")
    if any("\0" in word for word in argv):
        raise RuntimeFault("a word of the command holds a NUL byte")
