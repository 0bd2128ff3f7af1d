"""Control groups of both versions, in trees of plain directories: which are wanted, made, emptied and removed."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from rollwright.runtimes.sandbox import cgroups
from rollwright.runtimes.sandbox.cgroups import Bounds
from rollwright.runtimes.sandbox.sweep import sweep

BOUNDS = Bounds(memory_mb=64, cpus=1.5, pids=32)
FILES = ("memory.max", "memory.swap.max", "cpu.max", "pids.max", "cgroup.procs", "cgroup.kill")


class Kernel:
    """The module `os` with groups that have files from the start, and go with them."""

    def __init__(self):
        self.removed = {}

    def __getattr__(self, name):
        return getattr(os, name)

    def mkdir(self, path):
        os.mkdir(path)
        for name in FILES:
            with open(f"{path}/{name}", "w"):
                pass

    def rmdir(self, path):
        self.removed[path] = read(Path(path))
        for name in os.listdir(path):
            os.unlink(f"{path}/{name}")
        os.rmdir(path)


@pytest.fixture
def kernel(monkeypatch):
    kernel = Kernel()
    monkeypatch.setattr(cgroups, "os", kernel)
    return kernel


@pytest.fixture
def new(tmp_path, kernel, monkeypatch):
    """Where groups of version 2 are made: this process is in `user/own`."""
    top = tmp_path / "cgroup"
    (top / "user" / "own").mkdir(parents=True)
    (tmp_path / "own").write_text("0::/user/own\n")
    (top / "user" / "cgroup.controllers").write_text("cpu io memory pids\n")
    (top / "user" / "cgroup.subtree_control").write_text("cpu memory pids\n")
    monkeypatch.setattr(cgroups, "_parents", lambda: cgroups.parents(top, tmp_path / "own"))
    return top / "user"


def read(group):
    return {path.name: path.read_text() for path in group.iterdir() if path.read_text()}


def test_one_group_beside_our_own_has_all_bounds(new):
    wanted = cgroups.recipe(BOUNDS)
    assert wanted.paths("box") == [str(new / "box")]
    groups = cgroups.make("box", wanted)
    assert groups.controllers == {"memory", "cpu", "pids"}
    assert groups.doors == [str(new / "box" / "cgroup.procs")]
    limits = {"memory.max": str(64 << 20), "memory.swap.max": "0", "cpu.max": "150000 100000", "pids.max": "32"}
    assert read(new / "box") == limits
    cgroups.remove(groups.paths)
    cgroups.remove(groups.paths)
    assert not (new / "box").exists()


def test_controllers_are_asked_for_where_they_are_not_passed_on(new, monkeypatch):
    switch = new / "cgroup.subtree_control"
    switch.write_text("cpu\n")
    asked = []

    def write_text(path, words):
        asked.append(words)
        path.write_bytes(b"cpu memory pids\n")  # As the kernel would tell it then.

    monkeypatch.setattr(cgroups.Path, "write_text", write_text)
    assert cgroups.recipe(Bounds(memory_mb=65, pids=32)).parts[0].controllers == ("memory", "pids")
    assert asked == ["+memory +pids"]


def test_no_group_is_made_of_controllers_that_cannot_be_had(new):
    (new / "cgroup.subtree_control").write_text("cpu\n")
    (new / "cgroup.controllers").write_text("cpu\n")
    assert cgroups.make("box", cgroups.recipe(Bounds(memory_mb=66))) == cgroups.Groups(door="tasks")


def test_a_group_that_takes_no_bound_is_not_left(new, monkeypatch):
    monkeypatch.setattr(cgroups, "_write", refuse)
    assert cgroups.make("box", cgroups.recipe(Bounds(pids=33))).paths == ()
    assert not (new / "box").exists()


def refuse(path, value):
    raise PermissionError(path)


def test_no_bounds_are_no_groups(new):
    assert cgroups.recipe(Bounds()).parts == ()


def test_a_sweep_kills_by_the_groups_own_switch_and_removes_it(new, kernel):
    groups = cgroups.make("box", cgroups.recipe(BOUNDS))
    for _ in range(2):
        asyncio.run(sweep({"groups": groups.paths[0]}))
    assert kernel.removed[groups.paths[0]]["cgroup.kill"] == "1"
    assert not (new / "box").exists()


def test_without_a_switch_the_members_are_killed(tmp_path):
    with subprocess.Popen(["sleep", "1000"]) as left:
        (tmp_path / "cgroup.procs").write_text(f"{left.pid}\n")
        cgroups.end(str(tmp_path))
        assert left.wait(30) == -9
    cgroups.end(str(tmp_path / "gone"))


def test_version_one_has_a_group_for_each_controller(tmp_path):
    (tmp_path / "own").write_text("4:memory:/ours\n8:pids,cpu:/\n0::/\n")
    for name in ("memory/ours", "pids", "cpu"):
        (tmp_path / "top" / name).mkdir(parents=True)
    found = cgroups.parents(tmp_path / "top", tmp_path / "own")
    wanted = cgroups._recipe(BOUNDS, tuple(found.items()))
    assert [part.controllers for part in wanted.parts] == [("memory",), ("cpu",), ("pids",)]
    assert wanted.paths("box")[0] == str(tmp_path / "top" / "memory" / "ours" / "box")
    assert wanted.parts[1].settings == (("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "150000"))
    assert wanted.groups("box", [True, False, True]).controllers == {"memory", "pids"}
