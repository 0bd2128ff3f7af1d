"""Boxes of the engine that all tests share (see ../container_engine.py), and what is left of them."""

import asyncio
import sys
from pathlib import Path

import pytest

from rollwright.runtimes.docker import DockerConfig
from rollwright.runtimes.docker.runtime import DockerRuntime
from rollwright.runtimes.journal import Journal

sys.path.insert(0, str(Path(__file__).parent))

from engine_books import IMAGE, containers


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "journal")


@pytest.fixture
def make(engine_socket, journal, tmp_path, monkeypatch):
    """Makes boxes, and sees at the end that the engine and the journal have none left."""
    monkeypatch.setenv("ROLLWRIGHT_CACHE_DIR", str(tmp_path / "cache"))

    made = []

    def make_box(**settings):
        config = DockerConfig(**{"image": IMAGE, "socket": engine_socket, "memory_mb": 256, **settings})
        made.append(DockerRuntime(config, journal=journal))
        return made[-1]

    yield make_box
    for box in made:
        assert asyncio.run(containers(engine_socket, f"rollwright.box={box.name}")) == []
    assert list(journal.entries()) == []


@pytest.fixture
async def box(make):
    async with make() as runtime:
        yield runtime


@pytest.fixture
def far(monkeypatch):
    """An engine on another machine, or a user who is not root: nothing of a container is seen from outside."""
    monkeypatch.setattr("rollwright.runtimes.docker.containers.sees", lambda *_: False)
    monkeypatch.setattr("rollwright.runtimes.docker.runtime.may_enter", lambda: False)
