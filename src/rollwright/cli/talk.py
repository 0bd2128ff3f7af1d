"""Where words go: results to stdout, talk to stderr, above the live table while there is one."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable


class Talk:
    """One voice for all that is said during a command."""

    def __init__(self) -> None:
        self.above: Callable[[str], None] | None = None
        """Set while a live table owns the terminal's last lines."""

    def say(self, text: str) -> None:
        if self.above is not None:
            self.above(text)
        else:
            print(text, file=sys.stderr, flush=True)


class TalkHandler(logging.Handler):
    """Warnings of any room, as one line each."""

    def __init__(self, talk: Talk) -> None:
        super().__init__(logging.WARNING)
        self._talk = talk

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._talk.say(f"Warning: {record.getMessage()}")
        except Exception:  # The border that logging asks every handler to hold.
            self.handleError(record)


def result(text: str) -> None:
    """Print a result. A reader that has gone away (`| head`) is no failure of ours."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        reader_left()


def reader_left() -> None:
    """Nobody reads stdout any more. The interpreter flushes it once more at exit; let it do so into nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def open_closed_streams() -> None:
    """Whoever starts us may have closed stdin, stdout or stderr (`>&-`). Their numbers would go to the next files and
    sockets that are opened, which libraries take for the terminal; let them lead to nothing instead."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one, since those below are open by now.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  # Lives as long as the process.
