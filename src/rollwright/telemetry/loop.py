"""The entry point of every Rollwright process that has an event loop: uvloop where it exists, short thread turns, short
garbage collections.

Threads that compute hold the interpreter for a whole switch interval each, 5 ms by default, and a loop queues behind
all of them. Four such threads push its p99 lag to 75-91 ms; with turns of 0.2 ms it is 9 ms.

A full garbage collection holds the loop for as long as it takes to look at every object: 30-45 ms after our imports.
What start-up made stays to the end, so it is taken out of the collector's sight.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

SWITCH_INTERVAL_S = 0.0002
GC_THRESHOLDS = (1000, 5, 20)
"""Many small collections of the young instead of few large ones: none is noticed."""

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
    before_s, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)
    started()
    try:
        with asyncio.Runner(debug=debug, loop_factory=new_event_loop) as runner:
            return runner.run(main)
    finally:
        sys.setswitchinterval(before_s)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def started() -> None:
    """Say that what exists now stays: modules, servers, tasksets. Collections no longer look at it."""
    gc.freeze()
