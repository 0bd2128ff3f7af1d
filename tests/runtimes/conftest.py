"""Both event loops, and boxes whose leftovers are looked for."""

import asyncio
import os
from pathlib import Path

import pytest
import uvloop

from rollwright.runtimes import SubprocessConfig, SubprocessRuntime
from runtimes.container_engine import engine_socket
from runtimes.vendors import _modal_servers, _prime_needed, modal_vendor, prime_vendor

__all__ = ["_modal_servers", "_prime_needed", "engine_socket", "modal_vendor", "prime_vendor"]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def on_loop(request):
    """Runs a coroutine to its end on each kind of event loop."""

    def run(work):
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(work)

    return run


@pytest.fixture
async def box(tmp_path):
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    async with SubprocessRuntime(SubprocessConfig(directory=str(boxes))) as runtime:
        yield runtime
    assert list(boxes.iterdir()) == []


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def open_fds():
    return lambda: len(os.listdir("/proc/self/fd"))


@pytest.fixture
def own_children():
    """Pids of the children of this process, zombies included."""

    def look():
        found = set()
        for task in Path("/proc/self/task").iterdir():
            found |= {int(pid) for pid in (task / "children").read_text().split()}
        return found

    return look
