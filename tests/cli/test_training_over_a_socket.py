"""One command and a trainer over a socket: settings from a file, a further source, an evaluation, rollouts kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rollwright.orchestrator.transports import BatchReceiver

CONFIG = """
steps = 3
batch_size = 8
group_size = 4
follow = true
lag = 0
output = "out"
save_rollouts = true

[taskset]
name = "sums.py"

[[sources]]
taskset = "reverse-text"
ratio = 1.0

[[evals]]
taskset = "wordle"
tasks = 2
every = 2

[[filters]]
kind = "length"
max_sample_tokens = 1
name = "long"

[advantage]
kind = "leave_one_out"

[transport]
kind = "zmq"
bind = "tcp://127.0.0.1:*"
sync = false

[pack]
ranks = 2
max_tokens = 64
"""


def test_a_trainer_follows_over_a_socket(place: Path) -> None:
    Path("run.toml").write_text(CONFIG)
    argv = [sys.executable, "-m", "rollwright", "orchestrate", "run.toml", "--json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert process.stdout is not None
            address = next(line.split()[3] for line in process.stderr if line.startswith("Trainers connect to"))
            key = Path("out/trainer.key").read_text()
            with BatchReceiver(address, key=key) as receiver:
                for step in (1, 2, 3):
                    batch = receiver.receive(timeout_s=60)
                    assert batch.step == step
                    assert len({(sample.group, sample.attempt) for sample in batch.samples}) == 8
                    assert {sample.rank for sample in batch.samples} == {0, 1}
                    receiver.ack()
                    receiver.publish(step)
            assert process.wait(60) == 0, process.stderr.read()
            report = json.loads(process.stdout.read())
        finally:
            process.kill()
    assert (report["steps"], report["trained"]) == (3, 24)
    assert [(one["source"], one["version"]) for one in report["evals"]][:1] == [("eval wordle", 0)]
    kept = {path.name: path.read_text().count("\n") for path in Path("out/rollouts").glob("*/traces.jsonl")}
    assert kept
    assert sum(1 for path in Path("out/rollouts").iterdir()) == 3
    assert not list(Path("out").glob("batch-*"))
