"""Metrics go where a person wants them, and a wrong wish is one sentence."""

import json
import socket

import aiohttp
import pytest

from rollwright.telemetry import Metrics
from rollwright.telemetry.publishing import MetricsConfig, publishing
from rollwright.wire import UsageError


async def test_the_file_and_prometheus_tell_the_same(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    metrics = Metrics()
    metrics.counter("rollouts_total").inc(7)
    async with (
        publishing(metrics, MetricsConfig(prometheus_port=port), tmp_path / "metrics.jsonl"),
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        assert "rollouts_total 7.0" in (await answer.text()).splitlines()
    (*_, last) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(last)["metrics"]["rollouts_total"] == 7


async def test_a_missing_extra_is_said_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("rollwright.telemetry.sinks.wandb.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'rollwright\[wandb\]'"):
        async with publishing(Metrics(), MetricsConfig(wandb_project="p"), tmp_path / "metrics.jsonl"):
            pass


@pytest.mark.parametrize("wrong", [{"interval_s": 0}, {"interval_s": float("nan")}, {"prometheus_port": 70000}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(UsageError, match=f"metrics.{next(iter(wrong))} is"):
        MetricsConfig(**wrong)
