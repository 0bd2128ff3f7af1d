"""Ten equal waves of 500 rollouts in one process, and what it holds after the first, the fifth and the last.

Then nothing is under way, so all that it holds is kept, and points compare whatever the machine did meanwhile. Three
things are told of each: resident memory, the bytes that the C library has lent, and the blocks that Python has. The
second and third are counts of what lives: they know neither fragments nor free lists of pages.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import sys
import tempfile
from pathlib import Path

from rollwright.engines import RelayConfig
from rollwright.engines.relay import RelayEngine
from rollwright.engines.scripted import ScriptedConfig, scripted_process
from rollwright.rollouts import Environment, Evaluation, Recorder
from rollwright.rollouts.environment import Serving
from rollwright.rollouts.tally import Tally
from rollwright.tasks import load_tasks, make_taskset
from rollwright.telemetry import rss_bytes, run
from rollwright.telemetry.memory import find_malloc_trim
from rollwright.traces import RunDirectory

WAVES, LOOKS = 10, (1, 5, 10)
CONCURRENCY = 64
"""Connections stay open between waves, and a busy machine opens some of them late: that is not growth, so few."""
SCRIPT = ScriptedConfig(
    policy="oracle",
    solver="rollwright.tasks.oracle:solver",
    solver_options={"taskset": "reverse-text"},
    latency_s=0.02,
    latency_jitter_s=0.01,
    log_calls=0,
)


class Mallinfo(ctypes.Structure):
    """As in malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "free", "top")
    ]


def lent_bytes() -> int:
    """What malloc has given out; 0 where the C library does not tell."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0
    mallinfo2.restype = Mallinfo
    told = mallinfo2()
    return int(told.uordblks + told.hblkhd)


def held() -> dict[str, int]:
    gc.collect()
    if trim := find_malloc_trim():
        trim()
    return {"rss": rss_bytes(), "lent": lent_bytes(), "blocks": sys.getallocatedblocks()}


async def measure() -> dict[str, object]:
    taskset = make_taskset("reverse-text", {})
    environment = Environment(taskset)
    with tempfile.TemporaryDirectory() as place, RunDirectory.create(Path(place) / "run", {}) as directory:
        async with scripted_process(SCRIPT) as server:
            relay = RelayConfig(base_url=server.base_url, max_connections=CONCURRENCY)
            async with (
                RelayEngine(relay, model="scripted") as engine,
                environment.serving(engine, "scripted") as serving,
                Recorder(directory) as recorder,
            ):
                return await waves(serving, load_tasks(taskset), recorder, directory)


async def waves(serving: Serving, tasks: list, recorder: Recorder, directory: RunDirectory) -> dict[str, object]:
    tally = Tally(len(tasks) * WAVES)
    points = []
    for wave in range(1, WAVES + 1):
        more = {"concurrency": CONCURRENCY, "recorder": recorder, "done": directory.done, "tally": tally}
        await Evaluation(serving, tasks, rollouts=wave, **more).run()
        # The loop lets go of the last of them in its next turn.
        await asyncio.sleep(0)
        if wave in LOOKS:
            points.append({"finished": tally.finished, **held()})
    return {"reward_mean": tally.reward_so_far, "points": points}


if __name__ == "__main__":
    print(json.dumps(run(measure())))
