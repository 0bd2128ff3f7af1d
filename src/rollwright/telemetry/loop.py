"""The entry point of every Rollwright process that has an event loop: uvloop where it exists, short thread turns.

Threads that compute hold the interpreter for a whole switch interval each, 5 ms by default, and a loop queues behind
all of them. Four such threads push its p99 lag to 75-91 ms; with turns of 0.2 ms it is 9 ms.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

SWITCH_INTERVAL_S = 0.0002

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A uvloop loop, or asyncio's own where uvloop is not installed. Fits `loop_factory=` of asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, T], *, debug: bool | None = None) -> T:
    """Run `main` to its end on a fresh loop, as asyncio.run does, and leave the interpreter as it was."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with asyncio.Runner(debug=debug, loop_factory=new_event_loop) as runner:
            return runner.run(main)
    finally:
        sys.setswitchinterval(before_s)
