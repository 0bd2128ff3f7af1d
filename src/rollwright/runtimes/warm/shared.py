"""A call of a script's `main` in a process that has served others: the fastest way, for functions that keep nothing.

It runs with the box's environment and workspace, but outside of its limits and confinement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from rollwright.runtimes.contract import Ending, ExecResult
from rollwright.runtimes.local.census import MARK
from rollwright.runtimes.local.command import TIMED_OUT_CODE
from rollwright.runtimes.slots import CpuSlots

from . import channel
from .keeper import keeper
from .seat import Loadable, Seats


async def run_shared(
    box: Seats,
    script: Loadable,
    args: Sequence[str],
    *,
    env: Mapping[str, str] | None,
    stdin: bytes,
    timeout_s: float,
    slots: CpuSlots,
) -> ExecResult:
    """The answer of a shared worker in a slot; Unwarm where the script has to be run cold instead."""
    seat = box.seat(env)
    told = {
        "argv": list(args),
        "env": {name: value for name, value in seat.env.items() if name != MARK},
        "cwd": seat.cwd,
        "stdin": stdin.decode("latin-1"),
    }
    crew = keeper().crew(script, slots)
    ask = crew.ask(channel.described(told), seat.env, timeout_s)
    try:
        stdout, stderr = await ask.answer
        ending, code = Ending.EXITED, 0
    except TimeoutError:
        stdout = stderr = b""
        ending, code = Ending.TIMED_OUT, TIMED_OUT_CODE
    finally:
        if ask.answer.cancelled():
            crew.abandon(ask)
    wall_s = asyncio.get_running_loop().time() - ask.begun
    return ExecResult(ending, code, stdout, stderr, wall_s=wall_s, queue_s=ask.begun - ask.asked)
