"""A server with workers that do as their tasks say."""

import json
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollwright.serve import BrokerSettings, EnvClient, SlotSettings, serving

HOSTS = Path(__file__).parent / "hosts"
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def puppets(tmp_path, monkeypatch):
    """`async with puppets(workers=2) as (server, client)`."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HOSTS), os.environ.get("PYTHONPATH", "")]))

    @asynccontextmanager
    async def opened(
        *, workers=1, capacity=8, host="puppet", address="", slots=None, client=None, max_restarts=5, **bounds
    ):
        settings = BrokerSettings(
            workers=workers,
            capacity=capacity,
            host=host if ":" in host else f"served_hosts:{host}",
            options=json.dumps({"directory": str(tmp_path)}),
            slots=slots or SlotSettings(),
            **bounds,
        )
        async with (
            serving(settings, address=address, max_restarts=max_restarts) as server,
            EnvClient(server.address, **(client or {})) as environment,
        ):
            yield server, environment

    return opened


@pytest.fixture
def runs(tmp_path):
    """What the workers began, as (task id, attempt, pid)."""

    def read():
        path = tmp_path / "runs"
        return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []

    return read
