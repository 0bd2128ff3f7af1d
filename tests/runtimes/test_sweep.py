"""The journal and the sweep: what a killed owner left is found and freed, and nobody else's box is touched."""

import asyncio
import fcntl
import importlib
import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rollwright.runtimes import RUNTIME_KINDS, SubprocessConfig, SubprocessRuntime
from rollwright.runtimes.journal import Journal, started_at
from rollwright.runtimes.subprocess import free
from rollwright.runtimes.sweep import SWEEPERS, sweep_all
from rollwright.runtimes.testing import sh
from rollwright.wire import RuntimeFault

_OWNERS = """
    import asyncio, os, sys
    from pathlib import Path
    from rollwright.runtimes import SubprocessConfig, SubprocessRuntime
    from rollwright.runtimes.journal import Journal

    boxes, journal = sys.argv[1], Journal(Path(sys.argv[2]))
    DAEMONS = "for place in . /; do (cd $place; setsid sleep 1000 > /dev/null 2>&1 &); done; touch left; chmod 0 ."

    async def life():
        while True:
            async with SubprocessRuntime(SubprocessConfig(directory=boxes), journal=journal) as box:
                await box.run(["sh", "-c", DAEMONS])
                print("lived", flush=True)
                async with await box.open_process(["sleep", "1000"]):
                    await box.reset()
                    await box.run(["sh", "-c", DAEMONS])

    async def main():
        await asyncio.gather(*(life() for _ in range(8)))

    for _ in sys.stdin:
        if (pid := os.fork()) == 0:
            print(os.getpid(), flush=True)
            asyncio.run(main())
        os.waitpid(pid, 0)
        print("gone", flush=True)
"""


class World:
    """A place for boxes, a journal, and owners that get killed. Owners are forked by one process, which is quick."""

    def __init__(self, top: Path) -> None:
        self.boxes = top / "boxes"
        self.boxes.mkdir()
        self.journal = Journal(top / "journal")
        self._owners: subprocess.Popen | None = None

    def owner(self, lives: int) -> int:
        """The id of an owner whose boxes have lived `lives` times."""
        if self._owners is None:
            argv = [sys.executable, "-c", textwrap.dedent(_OWNERS), str(self.boxes), str(self.journal.directory)]
            self._owners = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self._owners.stdin.write("\n")
        pid = int(self._owners.stdout.readline())
        for _ in range(lives):
            assert self._owners.stdout.readline() == "lived\n"
        return pid

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        while self._owners.stdout.readline() != "gone\n":
            pass

    def close(self) -> None:
        if self._owners is not None:
            self._owners.communicate(timeout=30)

    def runtime(self) -> SubprocessRuntime:
        return SubprocessRuntime(SubprocessConfig(directory=str(self.boxes)), journal=self.journal)

    def left(self) -> list[str]:
        """Directories, journal files and processes."""
        files = [path.name for path in self.journal.directory.iterdir() if path.name != ".sweep.lock"]
        return [path.name for path in self.boxes.iterdir()] + files + _processes_in(str(self.boxes))


def _processes_in(directory: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"HOME={directory}/".encode() in (entry / "environ").read_bytes():
                found.append(f"process {entry.name}")
        except OSError:
            continue
    return found


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.close()


@pytest.mark.blocks_loop
async def test_what_a_killed_owner_left_is_freed(world):
    """Law 5, at random moments of the owner's life."""
    chance = random.Random(5)
    found = 0
    for _ in range(20):
        owner = world.owner(lives=chance.choice([0, 0, 1, 8, 16]))
        await asyncio.sleep(chance.random() * 0.05)  # Any moment will do.
        world.kill(owner)
        found += bool(world.left())
        swept = await sweep_all(world.journal)
        assert (swept.failed, world.left()) == ({}, [])
    assert found > 10, "most kills leave something, or this shows nothing"


@pytest.mark.blocks_loop
async def test_a_live_owner_keeps_its_boxes(world):
    owner = world.owner(lives=8)
    os.kill(owner, signal.SIGSTOP)
    before = world.left()
    assert (await sweep_all(world.journal)).freed == ()
    assert [name for name in before if name not in world.left() and "process" not in name] == []
    async with world.runtime() as mine:
        await sweep_all(world.journal)
        assert await sh(mine, "echo on") == "on\n"
    world.kill(owner)
    assert len((await sweep_all(world.journal)).freed) >= 1
    assert world.left() == []


@pytest.mark.blocks_loop
async def test_sweeps_at_the_same_time_do_not_meet(world):
    world.kill(world.owner(lives=8))
    program = "import asyncio, sys; from pathlib import Path; from rollwright.runtimes.sweep import *\n"
    program += "print(asyncio.run(sweep_all(Journal(Path(sys.argv[1])))).failed)"
    argv = [sys.executable, "-c", program, str(world.journal.directory)]
    others = [await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE) for _ in range(3)]
    swept = await asyncio.gather(*(sweep_all(world.journal) for _ in range(3)))
    for other in others:
        assert (await other.communicate())[0] == b"{}\n"
    assert [one.failed for one in swept] == [{}, {}, {}]
    assert world.left() == []


@pytest.mark.blocks_loop
async def test_a_sweep_that_is_waited_for_too_long_is_left_to_the_other(world):
    world.kill(world.owner(lives=8))
    with (world.journal.directory / ".sweep.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert (await sweep_all(world.journal, patience_s=0.1)).freed == ()
    assert (await sweep_all(world.journal)).freed != ()


async def test_a_box_is_written_down_from_before_it_is_made_until_it_is_gone(world):
    box = world.runtime()
    await box.start()
    (entry,) = world.journal.entries()
    assert (entry.kind, entry.name, entry.pid) == ("subprocess", box.name, os.getpid())
    assert entry.clues["directory"] == box._box.root
    assert [path.stat().st_mode & 0o777 for path in (world.journal.directory,)] == [0o700]
    await box.stop()
    assert list(world.journal.entries()) == []


async def test_a_box_that_does_not_go_stays_written_down(world, monkeypatch):
    box = world.runtime()
    await box.start()

    def fail(*_):
        raise PermissionError(1, "held by the test")

    with monkeypatch.context() as patch:
        patch.setattr("rollwright.runtimes.local.boxdir.BoxDir._remove_empty", fail)
        with pytest.raises(RuntimeFault, match="held by the test"):
            await box.stop()
    (entry,) = world.journal.entries()
    await free(entry.clues)
    await free(entry.clues)
    assert list(world.boxes.iterdir()) == []


@pytest.mark.parametrize(
    "clues",
    [
        {},
        {"directory": "/", "mark": "0" * 32},
        {"directory": "", "mark": "0" * 32},
        {"directory": "/home/me", "mark": "0" * 32},
        {"directory": "/tmp/rollwright-box-00/..", "mark": "0" * 32},
        {"directory": "/tmp/rollwright-box-00", "mark": ""},
        {"directory": "/tmp/rollwright-box-00"},
    ],
)
async def test_clues_that_lead_elsewhere_are_not_followed(clues):
    with pytest.raises(RuntimeFault, match="does not lead to a box"):
        await free(clues)


async def test_a_journal_that_cannot_be_written_is_a_fault(tmp_path):
    (tmp_path / "file").touch()
    box = SubprocessRuntime(SubprocessConfig(directory=str(tmp_path)), journal=Journal(tmp_path / "file" / "below"))
    with pytest.raises(RuntimeFault, match="ROLLWRIGHT_CACHE_DIR"):
        await box.start()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def _orphaned(journal: Journal, kind: str, name: str) -> None:
    """An entry of an owner that is no more: this process, had it started at another time."""
    journal.open(kind, name, {"who": name})
    path = journal.directory / f"{name}.json"
    path.write_text(path.read_text().replace(f'"started":"{started_at(os.getpid())}"', '"started":"1"'))


async def test_one_that_cannot_be_freed_keeps_no_other_from_it(world):
    for name in ("a", "b", "c"):
        _orphaned(world.journal, "good" if name != "b" else "bad", name)
    _orphaned(world.journal, "unheard-of", "d")
    world.journal.open("good", "mine", {})
    (world.journal.directory / "torn.json").write_text("{")
    freed = []

    async def good(clues):
        freed.append(clues["who"])

    async def bad(clues):
        raise OSError("no")

    swept = await world.journal.sweep({"good": good, "bad": bad})
    assert swept.freed == ("a", "c")
    assert sorted(freed) == ["a", "c"]
    assert swept.failed == {"b": "OSError: no", "d": "nothing here frees boxes of kind 'unheard-of'"}
    assert {entry.name for entry in world.journal.entries()} == {"b", "d", "mine"}


async def test_boxes_of_other_hosts_are_left_alone(world):
    _orphaned(world.journal, "good", "theirs")
    path = world.journal.directory / "theirs.json"
    path.write_text(path.read_text().replace('"host":"', '"host":"not-'))
    assert world.journal.orphans() == []


async def test_a_file_that_was_never_finished_is_removed_with_its_writer(world):
    world.journal.open("good", "mine", {})
    torn = world.journal.directory / ".a.json.999999999-5"
    being_written = world.journal.directory / f".b.json.{os.getpid()}-{started_at(os.getpid())}"
    for path in (torn, being_written):
        path.write_text("{")
    assert world.journal.has_orphans()
    await sweep_all(world.journal)
    assert (torn.exists(), being_written.exists()) == (False, True)


def test_a_process_that_waits_to_be_reaped_is_gone():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert started_at(child.pid) != ""
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{child.pid}").exists()
        assert started_at(child.pid) == ""
    assert started_at(os.getpid()) == started_at(os.getpid()) != ""


def test_every_kind_has_a_sweeper_that_can_be_had():
    assert set(RUNTIME_KINDS) <= set(SWEEPERS)
    for where in SWEEPERS.values():
        module, _, name = where.partition(":")
        assert asyncio.iscoroutinefunction(getattr(importlib.import_module(module), name))


async def test_nothing_to_sweep_makes_nothing(tmp_path):
    assert (await sweep_all(Journal(tmp_path / "none"))).freed == ()
    assert list(tmp_path.iterdir()) == []
