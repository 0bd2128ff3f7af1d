"""Workers as processes: how they are told their order, and the one that waits for it."""

import time

import pytest

from rollwright.serve.launching import WorkerOrder
from rollwright.serve.local import CALM_S, LocalLauncher


@pytest.fixture
def clock():
    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    return Clock()


@pytest.fixture
def launcher(clock):
    launcher = LocalLauncher(clock)
    yield launcher
    launcher.close()
    assert repr(launcher) == "<LocalLauncher 0 running, 0 spare>"


def exit_of(launcher):
    """The next worker that ends."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if ended := launcher.exits():
            return ended[0]
        time.sleep(0.02)
    raise AssertionError("nobody ended")


def test_when_all_is_calm_a_worker_waits_for_its_order(launcher, clock):
    # An order that is longer than a pipe holds is heard as well: the end of it is named.
    launcher.start(WorkerOrder(0, 1, "{}", "no.such:host", "x" * 200_000))
    launcher.exits()
    assert repr(launcher) == "<LocalLauncher 1 running, 0 spare>"
    clock.now += CALM_S
    launcher.exits()
    assert repr(launcher) == "<LocalLauncher 1 running, 1 spare>"
    launcher.start(WorkerOrder(1, 1, "{}", "no.such:other"))
    assert repr(launcher) == "<LocalLauncher 2 running, 0 spare>"
    ended = sorted((exit_of(launcher) for _ in range(2)), key=lambda one: one.slot)
    assert ["no.such:host" in ended[0].words, "no.such:other" in ended[1].words] == [True, True]


def test_a_spare_that_is_stopped_is_not_used(launcher, clock):
    launcher.start(WorkerOrder(0, 1, "{}", "no.such:host"))
    clock.now += CALM_S
    launcher.exits()
    launcher._spare.process.send_signal(19)
    while launcher._spare.waits():
        time.sleep(0.01)
    launcher.start(WorkerOrder(1, 1, "{}", "no.such:other"))
    assert {exit_of(launcher).slot, exit_of(launcher).slot} == {0, 1}
