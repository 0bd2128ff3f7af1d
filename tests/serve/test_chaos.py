"""Processes die at random under load, and each rollout is accounted for once. The long version is benchmarks.chaos."""

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest
from serve_tasks import play

from rollwright.serve import ServerLost, SlotSettings, Unserved

SLOTS = SlotSettings(backoff_s=0.05, max_restarts=100)
STRIKES = ("worker", signal.SIGKILL), ("worker", signal.SIGSTOP), ("broker", signal.SIGKILL), ("worker", signal.SIGKILL)


async def ready_workers(client):
    with contextlib.suppress(Unserved, ServerLost):
        status = await client.ask("status", timeout_s=1.0)
        return [
            int(worker["vitals"]["pid"])
            for worker in status["workers"]
            if worker["phase"] == "ready" and worker["vitals"]
        ]
    return []


async def strike(server, client, dice):
    """One strike after the other, each when somebody is ready whom none has hit. Returns who was there to be hit."""
    hit, struck = [], set()
    for what, how in dice.sample(STRIKES, len(STRIKES)):
        async with asyncio.timeout(60):
            while not (found := [pid for pid in await ready_workers(client) if pid not in struck]):
                await asyncio.sleep(0.05)
        hit += found
        victim = server.broker_pid if what == "broker" else dice.choice(found)
        struck.update(found if what == "broker" else [victim])
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, how)
    return hit


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak), pytest.param(2, marks=pytest.mark.soak)])
async def test_every_rollout_is_accounted_for_once_whoever_dies(puppets, runs, seed):
    dice = random.Random(seed)
    came = Counter()
    async with puppets(workers=2, slots=SLOTS, redispatches=100) as (server, client):
        striking = asyncio.create_task(strike(server, client, dice))
        attempts = iter(range(10**6))

        async def seat():
            # Load lasts as long as the strikes do.
            while not striking.done():
                trace = await client.run(play("sleep:0.05"), next(attempts), timeout_s=120)
                came[trace.attempt] += 1

        async with asyncio.timeout(180):
            await asyncio.gather(*(seat() for _ in range(8)))
            seen = [*await striking, *await ready_workers(client)]
        assert sorted(came) == list(range(next(attempts)))
        assert set(came.values()) == {1}
        assert server.restarts >= 1
        assert {task_id for task_id, _, _ in runs()} == {"sleep:0.05"}
        assert len({pid for _, _, pid in runs()}) >= 3
    async with asyncio.timeout(20):
        while any(Path(f"/proc/{pid}").exists() for pid in seen):
            await asyncio.sleep(0.05)
