"""Memory of workers, broker and client stays flat over thousands of rollouts with images. The whole measurement is
`python -m benchmarks.served_memory`."""

import argparse
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
async def test_memory_is_flat_over_many_rollouts(monkeypatch):
    from benchmarks.served_memory import measure

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    options = argparse.Namespace(
        rollouts=2500, turns=20, workers=2, concurrency=32, image_kb=16, budget_mb=256, every_s=0.25
    )
    figures = await measure(options)
    assert (figures["rollouts"], figures["replaced"]) == (2500, 0)
    assert figures["peak_mb"] < 256
    # A rollout that stayed would be 0.3 MB of images, or 300 per thousand.
    assert max(figures["slope_mb_per_1000"], figures["broker_slope"], figures["client_slope"]) < 3
