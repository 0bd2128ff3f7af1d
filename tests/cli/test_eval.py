"""`rollwright eval` as a process: results, resuming, signals."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollwright.cli.interrupts import Interrupts
from rollwright.cli.main import run
from rollwright.traces import RunDirectory, read_traces
from rollwright.wire import Trace

from .conftest import ask, command


def keys(run: Path, name: str = "traces.jsonl") -> list[tuple[str, int]]:
    return sorted(trace.key for trace in read_traces(run, name))


def test_results_go_to_stdout_and_files(place: Path) -> None:
    done = ask("eval", "sums.py", "-n", "5", "-r", "2", "-o", "out", "--taskset.loop-file", "loop.txt")
    assert done.returncode == 0, done.stderr
    assert "reward      1.000" in done.stdout
    assert "pass@k      1: 1.000  2: 1.000" in done.stdout
    assert "out/traces.jsonl" in done.stdout
    assert "done 10 of 10" in done.stderr
    assert keys(Path("out")) == sorted((f"sum-{n}", attempt) for n in range(5) for attempt in range(2))
    summary = json.loads(Path("out/summary.json").read_text())
    assert (summary["planned"], summary["finished"], summary["reward_mean"]) == (10, 10, 1.0)
    last = json.loads(Path("out/metrics.jsonl").read_text().splitlines()[-1])["metrics"]
    assert last["rollouts_finished"] == 10
    assert last["process_rss_bytes"] > 0
    assert any(key.startswith("loop_lag_seconds") for key in last)
    # The shipped entry point really runs on uvloop: a rollout has looked.
    assert Path("loop.txt").read_text() == "uvloop.Loop"


def test_whole_conversations_are_shown_when_asked_for(place: Path) -> None:
    done = ask("eval", "sums.py", "-n", "3", "--show", "2", "-c", "1")
    assert done.returncode == 0, done.stderr
    shown = done.stdout.split("traces.jsonl\n")[1]
    assert shown.count("[user]") == shown.count("[assistant]") == 2
    assert "sum-0, attempt 0: reward 1.000, finished" in shown
    assert "sum-2" not in shown


def test_failures_are_told_by_layer_and_done_again(place: Path) -> None:
    done = ask("eval", "sums.py", "-n", "6", "--taskset.broken", "2", "-o", "out", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["finished"], found["failed"], found["failures"]) == (4, 2, {"task": 2})
    assert found["directory"] == "out"
    assert "2x task: " in done.stderr
    assert "the answer key is upside down" in done.stderr
    assert "Traceback" not in done.stderr
    assert keys(Path("out"), "failures.jsonl") == [("sum-0", 0), ("sum-1", 0)]

    Path("sums.py").write_text(Path("sums.py").read_text().replace("if self.broken:", "if False:"))
    again = ask("eval", "sums.py", "-n", "6", "--taskset.broken", "2", "-o", "out", "--json", "--resume", "-c", "1")
    assert again.returncode == 0, again.stderr
    found = json.loads(again.stdout)
    assert (found["finished"], found["failed"], found["kept"], found["reward_mean"]) == (6, 0, 4, 1.0)
    assert "4 rollouts are kept, 2 are to be done" in again.stderr
    assert keys(Path("out")) == [(f"sum-{n}", 0) for n in range(6)]


def test_a_run_is_not_overwritten_and_not_mixed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", "sums.py", "-n", "2"]) == 0
    (path,) = Path("runs").iterdir()
    assert path.name.startswith("sums--scripted--")
    before = (path / "traces.jsonl").read_bytes()
    capsys.readouterr()
    assert run(["eval", "sums.py", "-n", "2", "-o", str(path)]) == 2
    assert "add --resume" in capsys.readouterr().err
    assert run(["eval", "sums.py", "-n", "3", "--resume"]) == 2
    assert "tasks was 2 and is now 3" in capsys.readouterr().err
    assert run(["eval", "sums.py", "-n", "2", "--resume", "-c", "3"]) == 0
    assert "2 rollouts are kept, 0 are to be done" in capsys.readouterr().err
    assert (path / "traces.jsonl").read_bytes() == before


def test_a_dry_run_asks_nobody_and_writes_nothing(place: Path) -> None:
    before = sorted(place.rglob("*"))
    done = ask("eval", "sums.py", "--dry-run", "--base-url", "http://127.0.0.1:9", "-m", "big", "-n", "3", "-r", "2")
    assert done.returncode == 0, done.stderr
    assert "# 3 of 30 tasks, 6 rollouts in all" in done.stdout
    assert "What is 0 plus 1?" in done.stdout
    assert 'base_url = "http://127.0.0.1:9"' in done.stdout
    assert sorted(place.rglob("*")) == before
    # What it shows is a settings file that begins the same run.
    Path("shown.toml").write_text(done.stdout)
    again = ask("eval", "--dry-run", "@shown.toml")
    assert again.stdout.split("\n# results")[0] == done.stdout.split("\n# results")[0]


@contextmanager
def begun(*argv: str, rollouts: int) -> Iterator[subprocess.Popen[str]]:
    """The command, at the moment when `rollouts` of them are running."""
    os.mkfifo("started")
    process = subprocess.Popen(
        command("eval", "sums.py", "--taskset.started", "started", *argv),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # Open for writing too, so that the end of one writer is not the end of the pipe.
        fifo = os.open("started", os.O_RDWR)
        told = b""
        while told.count(b"\n") < rollouts:
            ready, _, _ = select.select([fifo], [], [], 60)
            assert ready, "no rollout began"
            told += os.read(fifo, 4096)
        yield process
        os.close(fifo)
    finally:
        process.kill()
        process.communicate()


def heard(process: subprocess.Popen[str], words: str) -> str:
    """Read stderr up to the line that holds `words`."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"never said: {words}")


def test_the_first_press_finishes_what_runs(place: Path) -> None:
    gate = os.open("gate", os.O_RDWR | os.O_CREAT)
    fcntl.flock(gate, fcntl.LOCK_EX)
    with begun("--taskset.gate", "gate", "-c", "3", "-o", "out", rollouts=3) as process:
        process.send_signal(signal.SIGINT)
        said = heard(process, "Finishing")
        assert said == "Finishing 3 rollouts. Press Ctrl+C once more to drop them.\n"
        os.close(gate)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "3 of 20 rollouts, interrupted" in out
    assert "--resume -o out" in out
    assert len(keys(Path("out"))) == 3
    summary = json.loads(Path("out/summary.json").read_text())
    assert (summary["finished"], summary["interrupted"]) == (3, True)


@pytest.mark.parametrize("presses", [[signal.SIGINT, signal.SIGINT], [signal.SIGTERM, signal.SIGINT]])
def test_the_second_press_drops_what_runs(place: Path, presses: list[signal.Signals]) -> None:
    with begun("--taskset.gate", "closed", "-c", "2", "-o", "out", rollouts=2) as process:
        process.send_signal(presses[0])
        heard(process, "Finishing 2 rollouts")
        process.send_signal(presses[1])
        heard(process, "Dropping 2 rollouts")
        out, rest = process.communicate(timeout=60)
    assert process.returncode == 1, rest
    assert "Traceback" not in rest
    assert "0 of 20 rollouts, interrupted" in out
    assert json.loads(Path("out/summary.json").read_text())["finished"] == 0
    Path("sums.py").write_text(Path("sums.py").read_text().replace("def setup", "def unused"))
    again = ["eval", "sums.py", "--taskset.started", "started", "--taskset.gate", "closed", "-o", "out", "--resume"]
    assert run(again) == 0
    assert len(keys(Path("out"))) == 20


class Work:
    """Rollouts that only write down what is done to them."""

    def __init__(self) -> None:
        self.in_flight = 4
        self.story: list[str] = []

    def drain(self) -> None:
        self.story.append("drain")

    def drop(self) -> None:
        self.story.append("drop")


async def test_a_terminated_run_drops_what_does_not_finish_in_time() -> None:
    said: list[str] = []
    work = Work()
    with Interrupts(said.append, grace_s=0.0) as interrupts:
        interrupts.guard(work)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            while "drop" not in work.story:
                await asyncio.sleep(0)
    assert work.story == ["drain", "drop"]
    assert said == ["Finishing 4 rollouts for at most 0 s.", "Dropping 4 rollouts. What had finished is kept."]


async def test_before_the_first_rollout_a_press_ends_the_command() -> None:
    with Interrupts(lambda text: None) as interrupts:
        interrupts.pressed()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(10)
    assert interrupts.presses == 1


def test_a_disk_that_refuses_ends_the_run_and_keeps_what_is_there(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    append, calls = RunDirectory.append, []

    def full(self: RunDirectory, traces: Sequence[Trace]) -> None:
        calls.append(len(traces))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, traces)

    monkeypatch.setattr(RunDirectory, "append", full)
    assert run(["eval", "sums.py", "-o", "out", "-c", "2"]) == 1
    said = capsys.readouterr().err
    assert "Error: out cannot be written: No space left on device" in said
    assert "--resume -o out" in said
    assert "Traceback" not in said
    assert len(keys(Path("out"))) == calls[0]
    monkeypatch.setattr(RunDirectory, "append", append)
    assert run(["eval", "sums.py", "-o", "out", "-c", "2", "--resume"]) == 0
    assert len(keys(Path("out"))) == 20


GROUPS = '''
import os

from rollwright.tasks import Task, Taskset, group_reward, reward


class Pair(Task):
    @reward(weight=0)
    def length(self, reply: str) -> int:
        if self.id == "pair-0" and taken("broken"):
            raise ValueError("not now")
        return len(reply)

    @group_reward
    def size(self, traces: list) -> list[float]:
        return [float(len(traces)) for _ in traces]


def taken(path: str) -> bool:
    """True for exactly one of those who ask."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


class Pairs(Taskset):
    """Pairs."""

    def tasks(self):
        return [Pair(id=f"pair-{n}", prompt=f"hello {n}") for n in range(2)]
'''


def test_a_group_that_was_begun_before_is_scored_with_what_it_had(place: Path) -> None:
    """One attempt failed in the first session; the other one's trace is still part of its group."""
    Path("pairs.py").write_text(GROUPS)
    argv = ["eval", "pairs.py", "-r", "2", "-o", "out", "--engine.scripted.policy", "echo"]
    Path("broken").touch()
    assert run(argv) == 1
    assert [task for task, _ in keys(Path("out"))] == ["pair-0", "pair-1", "pair-1"]
    assert run([*argv, "--resume"]) == 0
    sizes = sorted((trace.task_id, trace.scores["size"].value) for trace in read_traces(Path("out")))
    assert sizes == [("pair-0", 1.0), ("pair-0", 2.0), ("pair-1", 2.0), ("pair-1", 2.0)]
