"""The simulation of `benchmarks.scaling`: a seed tells everything, and the real books account for every rollout."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def simulated(monkeypatch):
    """`simulated(seed, **load)`: the cluster after a run."""
    monkeypatch.syspath_prepend(str(ROOT))
    cluster, costs = (importlib.import_module(f"benchmarks.virtual.{name}") for name in ("cluster", "costs"))

    def run(seed, costing=None, **load):
        asked = costs.Load(**{"concurrency": 300, "capacity": 16, "turns": 3, "window_s": 15.0, **load})
        found = cluster.Cluster(asked, costs.Costs(**(costing or {})), seed)
        found.run()
        return found

    return run


def test_a_seed_tells_everything(simulated):
    first, again, other = simulated(1), simulated(1), simulated(2)
    assert first.figures() == again.figures()
    assert first.delivered == again.delivered
    assert first.figures() != other.figures()


@pytest.mark.parametrize("seed", range(5))
def test_every_rollout_is_accounted_for_once_whoever_dies(simulated, seed):
    found = simulated(seed, deaths_per_worker_hour=200.0, window_s=30.0)
    figures = found.figures()
    assert figures["deaths"] > 3
    assert figures["redispatched"] > 0
    assert (figures["lost"], figures["duplicated"]) == (0, 0)
    ended = len(found.delivered) + len(found.failed) + found.books.counts["abandoned"]
    assert ended + found.withdrawn == found.submitted
    assert max(found.delivered.values()) == 1
    status = found.books.status()
    assert (status["requests"], status["queued_rollouts"]) == (0, 0)


def test_a_cluster_with_time_to_spare_does_all_that_is_asked(simulated):
    figures = simulated(3, deaths_per_worker_hour=0.0, window_s=60.0).figures()
    assert 0.9 < figures["of_ideal"] < 1.1
    assert max(figures[part] for part in ("broker_loop", "broker_io", "client_loop", "client_io")) < 0.2


@pytest.mark.parametrize(
    ("part", "costing", "load"),
    [
        ("broker_loop", {"broker_us": 40_000.0}, {}),
        ("broker_io", {}, {"bytes_per_token": 2000.0}),
        ("client_loop", {"client_us": 40_000.0}, {}),
        ("worker_loop", {"turn_us": 300_000.0}, {}),
    ],
)
def test_the_part_that_is_made_dear_is_the_one_that_is_found(simulated, part, costing, load):
    found = simulated(4, costing, **load)
    assert max(found.loads, key=found.loads.get) == part
    assert found.loads[part] > 0.9
    assert found.figures()["lost"] == 0
