"""Is memory flat? Browser-like rollouts through the interceptor of a real worker process: every turn brings another
screenshot, and every request carries all of them again as base64. What is measured is the worker's resident memory.

    python -m benchmarks.memory --turns 45 --concurrent 4 --rollouts 200 --json

`peak_mb` is the most that it ever had, `resting_mb` what it has when all is over, and `slope_mb_per_100` how much more
it has after a hundred more rollouts: the line through its memory at the end of each rollout but the first quarter.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

from rollwright.telemetry import run

from .doors.program import Program
from .doors.worker import Door, Doorway, Figures, Setup, doorway
from .report import Target, report

_SETTLE_S = 6.0
"""Memory that was freed goes back to the system within this time."""


def _screenshot(noise: bytes, size: int) -> dict[str, Any]:
    # Fresh bytes of this size for each of many thousand screenshots would measure the source of randomness.
    data = os.urandom(64) + noise[: size - 64]
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


async def _browse(way: Doorway, door: Door, turns: int, noise: bytes) -> int:
    program = Program(door.url, door.key)
    program.say({"role": "system", "content": "You browse. " * 100}, {"role": "user", "content": "Find the price."})
    for turn in range(turns):
        message = await program.ask()
        call = message["tool_calls"][0]["id"]
        program.say(
            {"role": "tool", "tool_call_id": call, "content": f"clicked ({turn})"},
            {"role": "user", "content": [{"type": "text", "text": "The page:"}, _screenshot(noise, len(noise))]},
        )
    program.close()
    way.done(door)
    return program.sent_bytes


async def _measure(rollouts: int, turns: int, concurrent: int, image_kb: int) -> dict[str, float]:
    noise = os.urandom(image_kb * 1024)
    sent: list[int] = []
    began = time.monotonic()
    async with doorway(Setup(rollouts=rollouts, concurrent=concurrent)) as way:
        idle: Figures | None = None
        async with asyncio.TaskGroup() as programs:
            while (door := await way.doors.get()) is not None:
                idle = idle or await way.figures()
                program = programs.create_task(_browse(way, door, turns, noise))
                program.add_done_callback(lambda task: sent.append(task.result()))
        busy = await way.figures()
        await asyncio.sleep(_SETTLE_S)
        rested = await way.figures()
    assert idle is not None
    assert len(sent) == rollouts
    return {
        "peak_mb": rested.peak_mb,
        "resting_mb": rested.rss_mb,
        "slope_mb_per_100": _slope(busy.rss_after_each_mb),
        "idle_mb": idle.rss_mb,
        "cpu_ms_per_request": busy.cpu_s / (rollouts * turns) * 1e3,
        "lag_p99_ms": busy.lag_p99_ms,
        "received_gb": sum(sent) / 2**30,
        "wall_s": time.monotonic() - began - _SETTLE_S,
    }


def _slope(after_each_mb: Sequence[float]) -> float:
    settled = after_each_mb[len(after_each_mb) // 4 :]
    if len(settled) < 3:
        return 0.0
    return statistics.linear_regression(range(len(settled)), settled).slope * 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=200)
    parser.add_argument("--turns", type=int, default=45)
    parser.add_argument("--concurrent", type=int, default=4)
    parser.add_argument("--image-kb", type=int, default=200, help="Size of a screenshot, before base64.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = run(_measure(options.rollouts, options.turns, options.concurrent, options.image_kb))
    targets: dict[str, Target] = {
        "peak_mb": ("<=", 160.0),
        "resting_mb": ("<=", 95.0),
        "slope_mb_per_100": ("<=", 1.0),
    }
    report("memory", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
