"""A server whose workers are on a real Ray cluster; one of its nodes dies in mid-run, and another joins later. Run as a
program, because it leaves the machine's network first; prints what happened as one line of JSON."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import loopback
from serve_tasks import play

SLICE, ROLLOUTS = 2, 60


BEGAN = time.monotonic()


def say(what: str) -> None:
    print(f"{time.monotonic() - BEGAN:5.1f} s  {what}", file=sys.stderr, flush=True)


def descendants(pid: int) -> list[int]:
    """The process and all below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def switch_off(node) -> None:
    """End a node as a power failure does: all its processes, at once."""
    pids = [pid for info in node.all_processes.values() for one in info for pid in descendants(one.process.pid)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


async def until(condition, timeout_s=150.0):
    async with asyncio.timeout(timeout_s):
        while not (found := await condition()):
            await asyncio.sleep(0.05)
    return found


async def ready(client, count):
    async def look():
        workers = (await client.ask("status"))["workers"]
        found = [worker for worker in workers if worker["phase"] == "ready" and "pid" in worker["vitals"]]
        return found if len(found) == count else None

    return await until(look)


async def one_supervisor_less(client, workers) -> int:
    """Kill the process that keeps some of the workers. Ray starts it again, and it gets as many; returns how many went
    with it."""
    parent = int(Path(f"/proc/{int(workers[0]['vitals']['pid'])}/stat").read_text().rpartition(")")[2].split()[1])
    mine = set(descendants(parent))
    gone = {int(worker["vitals"]["pid"]) for worker in workers if int(worker["vitals"]["pid"]) in mine}
    os.kill(parent, signal.SIGKILL)

    async def replaced():
        found = await client.ask("status")
        pids = {int(one["vitals"].get("pid", 0)) for one in found["workers"] if one["phase"] == "ready"}
        return len(pids) == len(workers) and not pids & gone

    await until(replaced)
    return len(gone)


async def scenario(cluster, victim, add_node, directory: Path) -> dict:
    from rollwright.serve import BrokerSettings, EnvClient, serving
    from rollwright.serve.ray.settings import RaySettings

    ray_settings = RaySettings(
        cluster=cluster.address, slice_workers=SLICE, worker_cpus=1.0, worker_memory_mb=200, backoff_s=0.1
    )
    settings = BrokerSettings(
        # Room for a third slice is missing until another node joins.
        workers=3 * SLICE,
        capacity=8,
        host="served_hosts:puppet",
        options=json.dumps({"directory": str(directory)}),
    )
    options = json.dumps({name: getattr(ray_settings, name) for name in RaySettings.__struct_fields__})
    async with (
        serving(settings, address="tcp://127.0.0.1:0", launcher="ray", launcher_options=options) as server,
        EnvClient(server.address, ready_timeout_s=150.0) as client,
    ):
        before = await ready(client, 2 * SLICE)
        say("the cluster is full")
        waiting = [asyncio.create_task(client.run(play("sleep:1.0"), number)) for number in range(ROLLOUTS)]

        async def busy():
            return len((directory / "runs").read_text().splitlines()) >= 20 if (directory / "runs").exists() else False

        await until(busy)
        say("a node is switched off")
        doomed = {pid for info in victim.all_processes.values() for one in info for pid in descendants(one.process.pid)}
        killed_at = time.monotonic()
        switch_off(victim)
        traces = await asyncio.gather(*waiting)
        died = [one for one in (await client.ask("status"))["happenings"] if one["what"] == "died"]
        survivors = {int(worker["vitals"]["pid"]) for worker in await ready(client, SLICE)}
        say("a node joins")
        joined_at = time.monotonic()
        add_node()  # Ray wants the main thread, so this loop stands still meanwhile.
        after = await ready(client, 2 * SLICE)
        counts = (await client.ask("status"))["counts"]
        say("a supervisor is killed")
        crashed = await one_supervisor_less(client, after)
        say("half of the workers are sent away")
        await client.ask("scale", str(SLICE))

        async def fewer():
            return len((await client.ask("status"))["workers"]) == SLICE

        await until(fewer)
        say("the broker is killed")
        os.kill(server.broker_pid, signal.SIGKILL)
        running = asyncio.create_task(client.run(play("plain"), 999))
        assert (await running).attempt == 999
        say("another broker has answered")
        last = await client.run(play("plain"), 1000)
        return {
            "attempts": sorted(trace.attempt for trace in traces),
            "counts": counts,
            "before": len(before),
            "doomed": sum(int(worker["vitals"]["pid"]) in doomed for worker in before),
            "died": len(died),
            "notice_s": max(one["at"] for one in died) - killed_at,
            "survivors_lived": survivors <= {int(worker["vitals"]["pid"]) for worker in before},
            "after": len(after),
            "crashed": crashed,
            "restarts": server.restarts,
            "join_s": time.monotonic() - joined_at,
            "last": last.attempt,
            "encrypted": bool(server.address.server_key),
        }


def evaluation(cluster, directory: Path) -> dict:
    """`rollwright eval` with its workers on the cluster."""
    words = "eval gsm8k --engine scripted -n 4 -r 2 --workers 2 --launcher ray --address tcp://127.0.0.1:0 --json"
    small = "--ray.slice-workers 2 --ray.worker-memory-mb 200"
    place = ["--ray.cluster", cluster.address, "-o", str(directory / "run")]
    command = [sys.executable, "-m", "rollwright", *words.split(), *small.split(), *place]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    say(run.stderr)
    return json.loads(run.stdout)


def main() -> None:
    directory = Path(sys.argv[1])
    evaluates = sys.argv[2:] == ["eval"]
    loopback.enter()
    # Ray would start a Python process per CPU in advance, which nobody uses here.
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_enable_worker_prestart="0", RAY_prestart_worker_first_driver="0")
    from ray.cluster_utils import Cluster

    size = {"num_cpus": SLICE, "object_store_memory": 80 * 2**20, "memory": 2**30}
    cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **size})
    say("the head is up")
    try:
        victim = cluster.add_node(wait=False, **size)
        say("a second node is up")
        if evaluates:
            found = evaluation(cluster, directory)
        else:
            found = asyncio.run(scenario(cluster, victim, lambda: cluster.add_node(wait=False, **size), directory))
    finally:
        say("closing")
        cluster.shutdown()
    left = [pid for pid in descendants(os.getpid()) if pid != os.getpid()]
    print(json.dumps({**found, "interfaces": loopback.interfaces(), "left": len(left)}), flush=True)


if __name__ == "__main__":
    main()
