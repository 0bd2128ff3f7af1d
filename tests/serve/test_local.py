"""Workers as processes: how they are told their order, and the one that waits for it."""

import os
import signal
import time
from pathlib import Path

import pytest

from rollwright.serve.launching import WorkerOrder
from rollwright.serve.local import CALM_S, LocalLauncher, moves
from rollwright.serve.voice import Voice

HOSTS = Path(__file__).parent / "hosts"


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def launcher(clock, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HOSTS))
    launcher = LocalLauncher(clock)
    yield launcher
    launcher.close()
    assert repr(launcher) == "<LocalLauncher 0 running, 0 spare>"


def until(condition):
    give_up_at = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
    return found


def with_a_spare(launcher, clock):
    """One worker that has heard an order longer than a pipe holds, and a spare one."""
    launcher.start(WorkerOrder(0, 1, "{}", "served_hosts:asleep", "x" * 200_000))
    (worker,) = launcher._running.values()
    clock.now += CALM_S
    assert launcher.exits() == []
    assert repr(launcher) == "<LocalLauncher 1 running, 0 spare>"
    until(lambda: launcher.exits() == [] and worker.heard())
    clock.now += CALM_S
    assert launcher.exits() == []
    assert repr(launcher) == "<LocalLauncher 1 running, 1 spare>"
    return launcher._spare


def test_when_all_is_calm_a_worker_waits_for_its_order(launcher, clock):
    spare = with_a_spare(launcher, clock)
    launcher.start(WorkerOrder(1, 1, "{}", "no.such:host"))
    assert launcher._running[1, 1] is spare
    (ended,) = until(launcher.exits)
    assert (ended.slot, "no.such:host" in ended.words) == (1, True)


def test_a_spare_that_is_stopped_is_not_used(launcher, clock):
    spare = with_a_spare(launcher, clock)
    spare.process.send_signal(signal.SIGSTOP)
    until(lambda: not moves(spare.process.pid))
    launcher.start(WorkerOrder(1, 1, "{}", "no.such:host"))
    assert spare.process.returncode == -signal.SIGKILL
    assert until(launcher.exits)[0].slot == 1


def test_every_line_says_which_worker_speaks(monkeypatch):
    """Logs, prints and tracebacks alike."""
    monkeypatch.setenv("PYTHONPATH", str(HOSTS))
    reader, writer = os.pipe()
    launcher = LocalLauncher(voice=Voice(writer))
    for who in ((0, 1), (1, 7)):
        launcher.start(WorkerOrder(*who, "{}", "served_hosts:loud", f"from {who}"))
    ended = {}
    until(lambda: ended.update((exit.slot, exit.words) for exit in launcher.exits()) or len(ended) == 2)
    launcher.close()
    lines = os.read(reader, 100_000).decode().splitlines()
    for descriptor in (reader, writer):
        os.close(descriptor)
    for who, name in (((0, 1), "worker 0.1: "), ((1, 7), "worker 1.7: ")):
        own = [line.removeprefix(name) for line in lines if line.startswith(name)]
        assert own[:3] == [f"printed from {who}", f"loud: logged from {who}", "in two lines"]
        assert own[-1] == f"ValueError: from {who}"
        assert "Traceback (most recent call last):" in own
        assert name not in ended[who[0]], "who reads the obituary knows whose it is"
    assert all(line.startswith(("worker 0.1: ", "worker 1.7: ")) for line in lines)
