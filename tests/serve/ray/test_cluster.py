"""A real Ray cluster of several nodes on this machine's loopback."""

import importlib.util
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
RAY_NOTICES_S = 14.0
"""Ray asks a node for its health every 3 s, and believes in its death after five questions without an answer."""

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed; there may be no wheel of it for this machine"
)


def own_network() -> bool:
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import loopback; loopback.enter()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60).returncode == 0


def on_a_cluster(directory: Path, *words: str) -> dict[str, Any]:
    """What the program saw."""
    if not own_network():
        pytest.skip("Ray listens on every interface, and the kernel gives this process no network of its own")
    places = os.pathsep.join(
        [str(HERE), str(HERE.parent), str(HERE.parent / "hosts"), os.environ.get("PYTHONPATH", "")]
    )
    run = subprocess.run(
        [sys.executable, str(HERE / "on_a_cluster.py"), str(directory), *words],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": places},
    )
    assert run.returncode == 0, run.stderr[-8000:]
    seen: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    assert seen["interfaces"] == ["lo"]
    assert seen["left"] == 0
    return seen


@needs_ray
@pytest.mark.soak
def test_an_evaluation_has_its_workers_on_the_cluster(tmp_path):
    seen = on_a_cluster(tmp_path, "eval")
    assert (seen["finished"], seen["failed"], seen["reward_mean"]) == (8, 0, 1.0)


@needs_ray
def test_a_node_dies_in_mid_run_and_another_joins(tmp_path):
    seen = on_a_cluster(tmp_path)
    assert seen["encrypted"]
    # Two nodes have room for four workers; the two others wait, and are neither failures nor dead.
    assert (seen["before"], seen["doomed"]) == (4, 2)
    assert seen["attempts"] == list(range(60))
    assert seen["counts"]["done"] == 60
    assert seen["counts"]["redispatched"] > 0
    assert (seen["died"], seen["survivors_lived"]) == (2, True)
    assert seen["notice_s"] < RAY_NOTICES_S
    assert (seen["after"], seen["crashed"]) == (4, 2)
    # The driver died with the broker, and its actors with it: the next broker has room for its own.
    assert (seen["restarts"], seen["last"]) == (1, 1000)


def ask_for_room(launcher) -> None:
    """As a broker does, which has none to wait for."""
    while launcher.room(2) == 0:
        select.select([], [], [], 0.05)


def test_without_ray_the_server_says_what_to_install(monkeypatch):
    from rollwright.serve.ray.launcher import RayLauncher
    from rollwright.serve.ray.settings import RaySettings
    from rollwright.wire import UsageError

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'rollwright\[ray\]'"):
        RayLauncher(RaySettings())


@needs_ray
def test_a_cluster_that_is_not_there_ends_the_run_with_a_reason():
    from rollwright.serve.ray.launcher import RayLauncher
    from rollwright.serve.ray.settings import RaySettings
    from rollwright.serve.slots import SlotsSpent

    launcher = RayLauncher(RaySettings(cluster="127.0.0.1:1"))
    try:
        with pytest.raises(SlotsSpent, match=r"127\.0\.0\.1:1"):
            ask_for_room(launcher)
    finally:
        launcher.close()
