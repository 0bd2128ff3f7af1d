"""A trainer in sixty lines: reads batches, makes a small step, saves, acknowledges, publishes a version.

    $ rollwright orchestrate reverse-text --follow --steps 5 -o run &
    $ python examples/trainer.py run weights --steps 5

The policy is a table of one number per token, raised for tokens that did better than expected: enough to show every
part of the loop. What matters is the order: weights are saved first, then the batch is acknowledged, then the version
is told. A trainer that is killed in between goes on from its own weights, and no batch is trained twice or skipped.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np

from rollwright.orchestrator import Batch
from rollwright.orchestrator.transports import BatchReceiver

VOCABULARY = 2**18


def train(weights: np.ndarray, batch: Batch, rate: float = 0.1) -> np.ndarray:
    """One step of the policy gradient on the table."""
    step = np.zeros_like(weights)
    for sample in batch.samples:
        step += sample.advantage * np.bincount(sample.ids[sample.mask] % VOCABULARY, minlength=VOCABULARY)
    return weights + rate * step / max(len(batch.samples), 1)


def load(directory: Path) -> tuple[int, np.ndarray, list[list[object]]]:
    """The step that was trained last, its weights, and the rollouts that were ever trained."""
    try:
        saved = np.load(directory / "weights.npz", allow_pickle=False)
    except FileNotFoundError:
        return 0, np.zeros(VOCABULARY, np.float32), []
    return int(saved["step"]), saved["weights"], json.loads(str(saved["trained"]))


def save(directory: Path, step: int, weights: np.ndarray, trained: list[list[object]]) -> None:
    unfinished = directory / ".weights.npz"
    with open(unfinished, "wb") as file:
        np.savez(file, step=step, weights=weights.astype(np.float32), trained=json.dumps(trained))
    os.replace(unfinished, directory / "weights.npz")


def tell(receiver: BatchReceiver, step: int, directory: Path) -> None:
    """Said again after a crash, since nobody knows whether it was heard before."""
    if step:
        receiver.ack(step)
        receiver.publish(step, directory / "weights.npz")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("batches", help="the orchestrator's output directory, or tcp://HOST:PORT")
    parser.add_argument("weights", type=Path)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--key", default="", help="what the orchestrator wrote to trainer.key, for tcp")
    options = parser.parse_args()
    options.weights.mkdir(parents=True, exist_ok=True)
    step, weights, trained = load(options.weights)
    with BatchReceiver(options.batches, step + 1, key=options.key) as receiver:
        tell(receiver, step, options.weights)
        while step < options.steps:
            batch = receiver.receive(timeout_s=600)
            weights, step = train(weights, batch), batch.step
            trained += [[step, sample.task_id, sample.attempt, sample.branch] for sample in batch.samples]
            save(options.weights, step, weights, trained)
            tell(receiver, step, options.weights)
            print(f"step {step}: {len(batch.samples)} samples, {batch.tokens} tokens", flush=True)


if __name__ == "__main__":
    main()
