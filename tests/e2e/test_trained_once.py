"""Kill -9 of the orchestrator, the trainer and the broker at any moment: what is trained is what a calm run trains."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rollwright.orchestrator.sources import SourcePlan, Sources
from rollwright.tasks import load_tasks, make_taskset

TRAINER = Path(__file__).parents[2] / "examples" / "trainer.py"
BATCH, GROUP = 8, 4


class Run:
    """An orchestrator with a worker behind a broker, and a trainer, on one directory."""

    def __init__(self, place: Path, steps: int) -> None:
        self.place, self.steps = place, steps
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.log = open(place / "log.txt", "ab")  # noqa: SIM115 - closed by `close`

    def start(self) -> None:
        """Whoever is not there begins, or goes on."""
        out = self.place / "run"
        resume = ["--resume"] if (out / "groups").exists() else []
        self._start(
            "orchestrator",
            "-m", "rollwright", "orchestrate", "reverse-text", "--follow", "--lag", "0", "--workers", "1",
            "--steps", str(self.steps), "--batch-size", str(BATCH), "--group-size", str(GROUP), "-o", str(out),
            "--engine.scripted.latency-s", "0.05", "--in-flight.least", "4", "--in-flight.initial", "16", *resume,
        )  # fmt: skip
        self._start("trainer", str(TRAINER), str(out), str(self.place / "weights"), "--steps", str(self.steps))

    def _start(self, name: str, *argv: str) -> None:
        running = self.processes.get(name)
        if running is None or running.poll() is not None:
            if running is not None and running.returncode == 0:
                return
            self.processes[name] = subprocess.Popen([sys.executable, *argv], stdout=self.log, stderr=self.log)

    def kill(self, name: str) -> bool:
        pid = self.processes[name].pid if name in self.processes else self._broker()
        if not pid:
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        if name in self.processes:
            self.processes[name].wait(10)
        return True

    def _broker(self) -> int:
        children = Path(f"/proc/{self.processes['orchestrator'].pid}/task").glob("*/children")
        for pid in " ".join(path.read_text() for path in children).split():
            try:
                if b"broker_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return int(pid)
            except OSError:
                continue
        return 0

    def check(self) -> None:
        """Nobody ends but by our hand, or well."""
        for name, process in self.processes.items():
            assert process.poll() in (None, 0, -signal.SIGKILL), (name, (self.place / "log.txt").read_text()[-3000:])

    @property
    def trained(self) -> list[list[object]]:
        try:
            saved = np.load(self.place / "weights" / "weights.npz", allow_pickle=False)
        except FileNotFoundError:
            return []
        return json.loads(str(saved["trained"]))  # type: ignore[no-any-return]

    def finish(self, within_s: float) -> None:
        self.start()
        deadline = time.monotonic() + within_s
        for process in self.processes.values():
            process.wait(max(deadline - time.monotonic(), 0.1))

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(10)
        self.log.close()


def expected(steps: int) -> Counter[tuple[str, int]]:
    """What a run that nobody disturbs trains."""
    tasks = load_tasks(make_taskset("reverse-text", {}))
    sources = Sources([SourcePlan(name="reverse-text", tasks=len(tasks), group_size=GROUP)], seed=0)
    drawn = [sources.draw(0) for _ in range(steps * BATCH // GROUP)]
    return Counter((tasks[ticket.task].id, ticket.first_attempt + n) for ticket in drawn for n in range(GROUP))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the broker is found in /proc, which is not here")
@pytest.mark.parametrize(("kills", "steps"), [(5, 12), pytest.param(30, 250, marks=pytest.mark.soak)])
def test_nothing_is_trained_twice_or_lost_whoever_is_killed(tmp_path, kills, steps):
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    print(f"seed {seed}")
    run, done = Run(tmp_path, steps), 0
    try:
        while done < kills:
            run.start()
            before = len(run.trained)
            # Half of the moments come while something is starting, the others after a step.
            until = time.monotonic() + dice.uniform(0.2, 3.0)
            while time.monotonic() < until or (done % 2 and len(run.trained) == before):
                assert time.monotonic() < until + 60, (tmp_path / "log.txt").read_text()[-3000:]
                time.sleep(0.02)
                run.check()
                if run.processes["trainer"].poll() == 0:
                    break
            if run.processes["trainer"].poll() == 0:
                break
            done += run.kill(dice.choice(["orchestrator", "trainer", "broker"]))
        assert done >= kills / 2, f"the run was over after {done} kills"
        print(f"{done} kills")
        run.finish(240)
        assert [run.processes[name].returncode for name in ("orchestrator", "trainer")] == [0, 0], (
            tmp_path / "log.txt"
        ).read_text()[-3000:]
        trained = run.trained
    finally:
        run.close()
    assert Counter((task, attempt) for _, task, attempt, _ in trained) == expected(steps)
    assert Counter(step for step, *_ in trained) == dict.fromkeys(range(1, steps + 1), BATCH)
    assert list((tmp_path / "run" / "groups").iterdir()) == []
