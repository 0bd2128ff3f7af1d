"""Do samples cost what they weigh? CPU of making samples of rollouts of 100 and 400 turns with routed experts.

Every turn adds the same number of tokens, and brings the routing of what it added. `copy_bandwidth_share` compares a
rollout of 45 turns and 60,000 tokens with one numpy copy of its routed experts, `copy_bandwidth_share_400` one of 400
short turns; `file_share` compares landing the former in a file with writing these bytes in one piece. `packing` is 256
samples on 64 ranks, `filters` is repetition and gibberish on 60,000 tokens. All is CPU time, medians of repeats that
alternate with what they are compared with.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from rollwright.orchestrator.drafts import samples_of
from rollwright.orchestrator.filters import Gibberish, Repetition, make_filters
from rollwright.orchestrator.groups import Ticket
from rollwright.orchestrator.landing import discard, land
from rollwright.orchestrator.packing import pack
from rollwright.wire import CallRecord, Routing, TokenSegment, Trace
from rollwright.wire.arrays import column

from .report import Target, report

RANKS, SAMPLES = 64, 256


def rollout(turns: int, tokens_per_turn: int, layers: int, top_k: int) -> Trace:
    """A chat, half of each turn sampled; a payload begins with the row that the one before could not know."""
    dice = np.random.default_rng(turns)
    records = []
    for turn in range(turns):
        start = turn * tokens_per_turn
        ids = column(dice.integers(0, 150_000, tokens_per_turn), "i4")
        sampled = column(np.arange(tokens_per_turn) >= tokens_per_turn // 2, "b1")
        logprobs = column(np.where(sampled, -dice.random(tokens_per_turn), 0.0), "f4")
        first = max(start - 1, 0)
        rows = dice.integers(0, 128, (start + tokens_per_turn - 1 - first, layers, top_k), np.uint8)
        tape = TokenSegment(turn - 1, ids, sampled, logprobs, Routing(first, rows))
        records.append(CallRecord(prompt=0, reply=turn, policy_version=turn, tokens=tape))
    return Trace(task_id="bench", attempt=0, calls=tuple(records), reward=1.0)


def medians(repeats: int, *works: Callable[[], object]) -> list[float]:
    """CPU seconds of each, taken in turns so that a busy machine is as unkind to one as to the other."""
    spent: list[list[float]] = [[] for _ in works]
    for _ in range(repeats + 1):
        for times, work in zip(spent, works, strict=True):
            began = time.process_time()
            work()
            times.append(time.process_time() - began)
    return [statistics.median(times[1:]) for times in spent]


def copy_of(rows: np.ndarray) -> None:
    fresh = np.empty_like(rows)
    fresh[:] = rows


def land_in(directory: Path, trace: Trace) -> None:
    landed, _ = land(Ticket(0, "bench", 0, 0, 1), [trace], filters=make_filters().rollout, directory=directory)
    discard(landed)


def write_whole(path: Path, rows: np.ndarray) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        os.pwrite(descriptor, rows.reshape(-1).data, 0)
    finally:
        os.close(descriptor)
        path.unlink()


def interleaving_figures(options: argparse.Namespace) -> dict[str, float]:
    shape = (options.tokens_per_turn, options.layers, options.topk)
    short, long = rollout(100, *shape), rollout(400, *shape)
    rows = samples_of(long)[0].routed
    assert rows is not None
    at_100, at_400, copied = medians(
        options.repeats, lambda: samples_of(short), lambda: samples_of(long), lambda: copy_of(rows)
    )
    return {
        "ratio_400_over_100": at_400 / at_100,
        "copy_bandwidth_share_400": copied / at_400,
        "ms_400": at_400 * 1e3,
        "us_per_turn_400": (at_400 - copied) / 400 * 1e6,
    }


def routing_figures(options: argparse.Namespace) -> dict[str, float]:
    trace = rollout(45, 60_000 // 45, options.layers, options.topk)
    (sample,) = samples_of(trace)
    rows = sample.routed
    assert rows is not None
    filters = make_filters([Repetition(), Gibberish()]).rollout
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        made, copied, filtered, landed, written = medians(
            options.repeats,
            lambda: samples_of(trace),
            lambda: copy_of(rows),
            lambda: filters.flags([sample], trace),
            lambda: land_in(Path(name), trace),
            lambda: write_whole(Path(name) / "whole", rows),
        )
    return {
        "copy_bandwidth_share": copied / made,
        "file_share": written / landed,
        "routed_mb": rows.nbytes / 1e6,
        "sample_ms": made * 1e3,
        "land_ms": landed * 1e3,
        "filters_ms": filtered * 1e3,
    }


def packing_figures(repeats: int) -> dict[str, float]:
    lengths = np.random.default_rng(0).integers(500, 60_000, SAMPLES).tolist()
    figures: dict[str, float] = {}
    for name, max_tokens in (("packing", 131_072), ("packing_tight", 65_536)):
        # By the CPU's own clock: on a busy machine the wall's would end the search early and flatter the figure.
        search = partial(pack, lengths, ranks=RANKS, max_tokens=max_tokens, clock=time.process_time)
        (spent,) = medians(repeats, search)
        figures[f"{name}_ms"] = spent * 1e3
        figures[f"{name}_over_least"] = search().cost / (sum(lengths) / RANKS)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens-per-turn", type=int, default=150, help="Of every turn, half of them sampled.")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--topk", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=15, help="The median is reported.")
    parser.add_argument("--directory", default=None, help="Where groups land; a temporary directory if not given.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = interleaving_figures(options) | routing_figures(options) | packing_figures(options.repeats)
    targets: dict[str, Target] = {
        "ratio_400_over_100": ("<=", 4.4),
        "copy_bandwidth_share": (">=", 0.5),
        "packing_ms": ("<=", 200.0),
        "packing_tight_ms": ("<=", 200.0),
    }
    report("samples", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
