"""A real environment behind a broker gives what it gives in this process; the verbs that serve and give orders."""

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from forked import python
from rollwright.engines import EngineConfig, open_engine
from rollwright.engines.scripted.config import ScriptedConfig
from rollwright.rollouts import Environment
from rollwright.serve import BrokerSettings, EnvClient, EnvironmentSpec, Unserved, serving
from rollwright.serve.environments import HOST
from rollwright.tasks import load_tasks, make_taskset
from rollwright.wire import Stop

SOLVER = {"taskset": "reverse-text", "options": {}}
ENGINE = EngineConfig(scripted=ScriptedConfig(solver="rollwright.tasks.oracle:solver", solver_options=SOLVER))


def essence(trace):
    return trace.task_id, trace.attempt, trace.messages, trace.scores, trace.reward, trace.stop, trace.usage


async def test_served_rollouts_equal_local_ones():
    taskset = make_taskset("reverse-text", {})
    tasks = load_tasks(taskset)[:5]
    async with open_engine(ENGINE, "scripted") as engine, Environment(taskset).serving(engine, "scripted") as local:
        expected = [await local.run_group(task, 2) for task in tasks]
    spec = EnvironmentSpec(taskset="reverse-text", model="scripted", engine=ENGINE)
    settings = BrokerSettings(workers=1, host=HOST, options=spec.encode())
    async with serving(settings) as server, EnvClient(server.address) as client:
        served = await asyncio.gather(*(client.run_group(task, 2) for task in tasks))
        stranger = type(tasks[0])(
            **{name: getattr(tasks[0], name) for name in tasks[0].__struct_fields__} | {"id": "x"}
        )
        with pytest.raises(Unserved, match="'x' is not in the taskset"):
            await client.run(stranger)
    assert [[essence(trace) for trace in group] for group in served] == [
        [essence(trace) for trace in group] for group in expected
    ]
    assert {trace.reward for group in served for trace in group} == {1.0}


def engine_of(worker_pid):
    """The process of the engine that belongs to a worker."""
    for line in Path(f"/proc/{worker_pid}/task/{worker_pid}/children").read_text().split():
        if b"rollwright.engines.scripted" in Path(f"/proc/{line}/cmdline").read_bytes():
            return int(line)
    raise AssertionError("the worker has no engine")


async def test_a_worker_whose_own_engine_died_is_replaced_and_nothing_fails():
    task = load_tasks(make_taskset("reverse-text", {}))[0]
    spec = EnvironmentSpec(taskset="reverse-text", model="scripted", engine=ENGINE)
    settings = BrokerSettings(workers=1, host=HOST, options=spec.encode())
    async with serving(settings) as server, EnvClient(server.address) as client:
        await client.run(task)
        async with asyncio.timeout(20):
            while not (worker := (await client.ask("status"))["workers"][0])["vitals"]:
                await asyncio.sleep(0.02)
        os.kill(engine_of(int(worker["vitals"]["pid"])), signal.SIGKILL)
        group = await client.run_group(task, 3)
        assert [trace.reward for trace in group] == [1.0, 1.0, 1.0]
        status = await client.ask("status")
        assert [one["life"] for one in status["workers"]] == [2]
        assert "the scripted engine died" in next(one["why"] for one in status["happenings"] if one["what"] == "died")


async def test_one_rollout_is_cancelled_and_versions_reach_every_worker():
    task = load_tasks(make_taskset("reverse-text", {}))[0]
    slow = msgspec.structs.replace(ENGINE, scripted=msgspec.structs.replace(ENGINE.scripted, latency_s=1.0))
    spec = EnvironmentSpec(taskset="reverse-text", model="scripted", engine=slow)
    settings = BrokerSettings(workers=2, host=HOST, options=spec.encode())
    async with serving(settings) as server, EnvClient(server.address) as client:
        await client.tell_policy(7)
        group = asyncio.create_task(client.run_group(task, 3))
        while not client.cancel_rollout(task, 1):
            await asyncio.sleep(0.01)
        traces = await group
        assert [trace.stop for trace in traces] == [Stop.FINISHED, Stop.CANCELLED, Stop.FINISHED]
        assert {call.policy_version for trace in traces for call in trace.calls} == {7}
        assert not client.cancel_rollout(task, 1)
        await client.tell_policy(8)
        several = await asyncio.gather(*(client.run(task, attempt) for attempt in range(10, 14)))
        assert {call.policy_version for trace in several for call in trace.calls} == {8}
        # A worker that comes later is told as well.
        await client.ask("drain")
        assert (await client.run(task, 20)).calls[0].policy_version == 8


def rollwright(*argv, cwd):
    return python("-m", "rollwright", *argv, cwd=cwd)


def test_serve_and_ctl_from_the_command_line(tmp_path):
    argv = [sys.executable, "-m", "rollwright", "serve", "reverse-text", "--workers", "1", "--json"]
    with subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            told = json.loads(server.stdout.readline())
            file = tmp_path / told["address_file"]
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            answer = rollwright("ctl", "scale", "2", "-s", str(file.parent), "--json", cwd=tmp_path)
            assert answer.returncode == 0, answer.stderr
            assert json.loads(answer.stdout)["requests"] == 0
            shown = rollwright("ctl", "status", "-s", str(file), cwd=tmp_path)
            assert "worker 0.1" in shown.stdout
            wrong = rollwright("ctl", "scale", "lots", "-s", str(file), cwd=tmp_path)
            assert wrong.returncode != 0
            assert "scale takes a number" in wrong.stderr
            os.kill(server.pid, signal.SIGTERM)
            assert server.wait(timeout=30) == 0
            assert not file.exists()
        finally:
            server.kill()
    gone = rollwright("ctl", "status", "-s", str(file), cwd=tmp_path)
    assert gone.returncode == 2
    assert "is it running?" in gone.stderr


def test_eval_with_workers_gives_what_it_gives_alone(tmp_path):
    argv = ["eval", "reverse-text", "-n", "6", "-r", "2", "--json"]
    alone = rollwright(*argv, "-o", "alone", cwd=tmp_path)
    served = rollwright(*argv, "-o", "served", "--workers", "2", cwd=tmp_path)
    assert (alone.returncode, served.returncode) == (0, 0), served.stderr
    one, other = (json.loads(run.stdout.splitlines()[-1]) for run in (alone, served))
    same = ("planned", "finished", "failed", "reward_mean", "pass_at", "scores", "usage", "stops")
    assert {key: other[key] for key in same} == {key: one[key] for key in same}
    assert other["finished"] == 12
