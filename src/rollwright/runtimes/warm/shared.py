"""A call of a script's `main` in a process that has served others: the fastest way, for functions that keep nothing.

It runs with the box's environment and workspace, but outside of its limits and confinement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from rollwright.runtimes.contract import Ending, ExecResult
from rollwright.runtimes.local.census import MARK
from rollwright.runtimes.local.command import TIMED_OUT_CODE

from . import channel
from .keeper import keeper
from .seat import Loadable, Seats
from .zygotes import Unwarm


async def run_shared(
    box: Seats, script: Loadable, args: Sequence[str], *, env: Mapping[str, str] | None, stdin: bytes, timeout_s: float
) -> ExecResult:
    """The answer of a shared worker; Unwarm where the script has to be run cold instead."""
    home = keeper()
    worker = await home.worker(script)
    try:
        seat = box.seat(env)
        if not worker.zygote.suits(seat.env):
            raise Unwarm("environment")
        told = {
            "argv": list(args),
            "env": {name: value for name, value in seat.env.items() if name != MARK},
            "cwd": seat.cwd,
            "stdin": stdin.decode("latin-1"),
        }
        began = asyncio.get_running_loop().time()
        try:
            stdout, stderr = await worker.ask(channel.described(told), timeout_s)
            ending, code = Ending.EXITED, 0
        except TimeoutError:
            stdout = stderr = b""
            ending, code = Ending.TIMED_OUT, TIMED_OUT_CODE
        wall_s = asyncio.get_running_loop().time() - began
    finally:
        home.give_back(worker)
    return ExecResult(ending, code, stdout, stderr, wall_s=wall_s)
