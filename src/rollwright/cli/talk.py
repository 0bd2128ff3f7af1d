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
