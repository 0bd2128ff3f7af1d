"""`rollwright serve` as whoever runs it sees it: it says what goes on, and ends when nothing does."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollwright.cli.addresses import read_address
from rollwright.cli.ctl import told
from rollwright.cli.main import run
from rollwright.cli.serve_state import State
from rollwright.serve import EnvClient
from rollwright.serve.server import SeenWorker, Sight
from rollwright.serve.slots import Phase
from rollwright.tasks import load_tasks, make_taskset

from .conftest import command

SLEEPY = """
import time

from rollwright.tasks import Task, Taskset, reward


class Sleepy(Task):
    async def setup(self):
        time.sleep(1.5)

    @reward
    def fine(self, reply: str) -> bool:
        return True


class Sleepies(Taskset):
    broken: bool = False

    def tasks(self):
        if self.broken:
            raise OSError("the answers are in another building")
        return [Sleepy(id="nap", prompt="Sleep.")]
"""


@asynccontextmanager
async def serving(*argv: str, cwd: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, list[str]]]:
    """A running `serve` and what it has said so far."""
    said: list[str] = []
    process = await asyncio.create_subprocess_exec(
        *command("serve", *argv), cwd=cwd, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None

    async def listen(stderr: asyncio.StreamReader) -> None:
        while line := await stderr.readline():
            said.append(line.decode().rstrip())

    listening = asyncio.create_task(listen(process.stderr))
    try:
        yield process, said
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            await asyncio.gather(process.wait(), listening)


async def until_said(words: str, said: list[str]) -> str:
    async with asyncio.timeout(90):
        while not (found := [line for line in said if words in line]):
            await asyncio.sleep(0.02)
    return found[0]


async def test_what_goes_on_is_said_and_a_directory_has_one_server(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    place = tmp_path / "place"
    argv = (str(tmp_path / "sleepy.py"), "--engine", "scripted", "--workers=1", f"--output={place}")
    async with serving(*argv, "--slots.stall-after-s=0.4", cwd=tmp_path) as (process, said):
        serving_now = await until_said("Serving with 1 worker.", said)
        address, *waits = said[: said.index(serving_now)]
        assert address == f"The address is in {place / 'server.json'}; Ctrl+C stops."
        # Whichever comes first: the look, or the news that its worker begins.
        assert set(waits) <= {"Waiting for 1 worker to start.", "Waiting: worker 0.1 is starting."}
        assert json.loads((place / "server.json").read_text())["pid"] == process.pid
        task = load_tasks(make_taskset(str(tmp_path / "sleepy.py"), {}))[0]
        async with EnvClient(read_address(str(place))) as environment:
            assert (await environment.run(task)).task_id == "nap"
        await until_said("worker 0.1 stands still for", said)
        assert "in Sleepy.setup" in await until_said("sleepy.py:", said)
        async with serving(*argv, cwd=tmp_path) as (second, words):
            assert await asyncio.wait_for(second.wait(), 60) == 2
            await until_said(f"another process is writing to {place}", words)
        process.kill()
        await process.wait()
    assert await asyncio.to_thread(run, ["ctl", "status", "-s", str(place)]) == 2
    assert f"is gone: its process {process.pid} has ended" in capfd.readouterr().err


async def test_when_the_workers_cannot_live_serve_ends_and_says_why(tmp_path: Path):
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    argv = (str(tmp_path / "sleepy.py"), "--taskset.broken", "true", "--engine", "scripted", "--workers=1")
    async with serving(*argv, "--output=place", "--slots.max-restarts=0", cwd=tmp_path) as (process, said):
        assert await asyncio.wait_for(process.wait(), 90) == 1
        await until_said("Error: worker 0 died 1 times in a row", said)
        assert len([line for line in said if "the answers are in another building" in line]) >= 2
    assert not (tmp_path / "place" / "server.json").exists()


def seen(*phases: Phase, wanted: int = 2) -> Sight:
    workers = tuple(SeenWorker(f"worker {number}.1", phase) for number, phase in enumerate(phases))
    return Sight(wanted=wanted, workers=workers)


def test_it_is_said_who_is_waited_for_and_when_that_is_over() -> None:
    state = State()
    ready, starting = Phase.READY, Phase.STARTING
    assert state.look(seen(), 0.0) == "Waiting for 2 workers to start."
    assert state.look(seen(starting), 9.0) == ""
    words = "Waiting: worker 0.1 is starting. No worker has answered for 10 s."
    assert state.look(seen(starting), 10.0) == words
    assert state.look(seen(starting), 29.0) == ""
    assert "for 30 s" in state.look(seen(starting), 30.0)
    assert state.look(seen(ready, starting), 31.0) == "Serving with 1 of 2 workers; the others are not ready."
    assert state.look(seen(ready, starting), 99.0) == ""
    assert state.look(seen(ready, ready), 100.0) == "Serving with 2 workers."
    assert state.look(seen(Phase.STALLED), 101.0) == "Waiting: worker 0.1 is stalled."
    assert state.look(seen(wanted=0), 111.0) == "Waiting for a worker to join. No worker has answered for 10 s."


def test_ctl_says_that_the_server_fails() -> None:
    answer = {"failing": "worker 0 died 6 times in a row", "counts": {}, "requests": 0, "queued_rollouts": 0}
    assert told({**answer, "workers": []}).startswith("Failing: worker 0 died 6 times in a row\n0 requests")
