"""Kill -9 at any moment, resume, and each (task, attempt) is there exactly once."""

import asyncio
import contextlib
import json
import os
import random
import signal

from forked import python
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
        "-m", "rollwright", "eval", "reverse-text", "-m", "scripted", "--base-url", base_url,
        "-n", str(TASKS), "-r", str(ROLLOUTS), "-c", str(at_once), "-o", str(output), "--json", *resume,
    ]  # fmt: skip


async def evaluate(argv, moment=None):
    """Run the command, and kill it outright when `moment` has passed. Returns its exit code and stdout."""
    loop = asyncio.get_running_loop()
    begun = loop.create_future()
    running = asyncio.to_thread(python, *argv, begun=lambda pid: loop.call_soon_threadsafe(begun.set_result, pid))
    killer = asyncio.create_task(kill(begun, moment)) if moment else None
    done = await running
    if killer:
        killer.cancel()
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, done.stdout


async def kill(begun, moment):
    pid = await begun
    await moment
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


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
            # Every other moment may come before the first rollout: while reading what is there. A fork is there soon.
            early = asyncio.sleep(dice.uniform(0.02, 0.4))
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
