"""Kill -9 at any moment, resume, and each (task, attempt) is there exactly once."""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys

from rollwright.engines.scripted import ScriptedConfig, scripted_process
from rollwright.tasks import load_tasks, make_taskset
from rollwright.traces import read_traces

KILLS = 20
TASKS, ROLLOUTS = 40, 15

ORACLE = ScriptedConfig(
    solver="rollwright.tasks.oracle:solver",
    solver_options={"taskset": "reverse-text"},
    latency_s=0.1,
    latency_jitter_s=0.1,
)


def command(base_url, output, at_once=4):
    resume = ["--resume"] if (output / "config.toml").exists() else []
    return [
        sys.executable, "-m", "rollwright", "eval", "reverse-text", "-m", "scripted", "--base-url", base_url,
        "-n", str(TASKS), "-r", str(ROLLOUTS), "-c", str(at_once), "-o", str(output), "--json", *resume,
    ]  # fmt: skip


async def evaluate(argv, moment=None):
    """Run the command, and kill it outright when `moment` has passed. Returns its exit code and stdout."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    killer = asyncio.create_task(kill(process, moment)) if moment else None
    async with asyncio.timeout(120):
        out, err = await process.communicate()
    if killer:
        killer.cancel()
    assert b"Traceback" not in err, err.decode()
    assert process.returncode in (0, -signal.SIGKILL), err.decode()
    return process.returncode, out


async def kill(process, moment):
    await moment
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)


async def something_finished(output, delay_s):
    """Rollouts are being written, and a little more time has passed."""

    def size():
        path = output / "traces.jsonl"
        return path.stat().st_size if path.exists() else 0

    before = size()
    while size() == before:
        await asyncio.sleep(0.005)
    await asyncio.sleep(delay_s)


async def test_twenty_kills_lose_and_repeat_nothing(tmp_path):
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    print(f"seed {seed}")
    output, seen = tmp_path / "run", []
    async with scripted_process(ORACLE) as server:
        for number in range(KILLS):
            # Every other moment may come before the first rollout: while starting, while reading what is there.
            early = asyncio.sleep(dice.uniform(0.1, 1.2))
            moment = something_finished(output, dice.uniform(0, 0.2)) if number % 2 else early
            code, _ = await evaluate(command(server.base_url, output), moment)
            assert code == -signal.SIGKILL, f"it ended before kill {number}; make it longer"
            keys = [trace.key for trace in read_traces(output)]
            assert len(keys) == len(set(keys))
            assert set(seen) <= set(keys), "a finished rollout was lost"
            seen = keys
            early.close()
        # What the kills left undone is no part of the question, so it is done at once.
        code, out = await evaluate(command(server.base_url, output, at_once=128))
    assert code == 0
    wanted = [(task.id, n) for task in load_tasks(make_taskset("reverse-text", {}))[:TASKS] for n in range(ROLLOUTS)]
    assert sorted(trace.key for trace in read_traces(output)) == sorted(wanted)
    assert len(seen) >= KILLS // 2
    assert json.loads(out.splitlines()[-1])["finished"] == len(wanted)
