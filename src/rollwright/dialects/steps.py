"""Long work in steps: a generator that yields between pieces of it, so that whoever runs it can let others have a turn.
Short work yields nothing, so it costs no more than a call."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]

STEP_BYTES = 2**18
"""About so much text is read in one step; what is read by one call of the JSON reader is one piece."""
STEP_ELEMENTS = 256
"""And at most so many elements of a list."""


def at_once(steps: Steps[T]) -> T:
    """All steps, one after the other."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value


async def in_turns(steps: Steps[T]) -> T:
    """All steps, and others have their turn in between."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value
        await asyncio.sleep(0)
