"""Threads that work in a box when their caller is gone: nobody empties, removes or closes anything under them."""

import asyncio
import os
import threading

import pytest

from rollwright.runtimes import SubprocessConfig, SubprocessRuntime, subprocess
from rollwright.runtimes.journal import Journal
from rollwright.runtimes.local import boxdir
from rollwright.runtimes.local.boxdir import BoxDir
from rollwright.runtimes.local.threads import Chores
from rollwright.runtimes.sandbox import runtime as sandbox
from rollwright.wire import RuntimeFault
from runtimes.pool.test_real_boxes import no_sandbox

PATIENCE_S = 30


class Slow:
    """A function that waits at its beginning until it is let go, and notes how many are in it."""

    def __init__(self, work):
        self._work = work
        self.go_on, self.ended = threading.Event(), threading.Event()
        self._entered = threading.Semaphore(0)
        self.inside = self.most = 0

    def __call__(self, *args):
        self.inside += 1
        self.most = max(self.most, self.inside)
        self._entered.release()
        try:
            assert self.go_on.wait(PATIENCE_S)
            return self._work(*args)
        finally:
            self.inside -= 1
            self.ended.set()

    async def entered(self):
        assert await asyncio.to_thread(self._entered.acquire, timeout=PATIENCE_S)

    async def over(self):
        assert await asyncio.to_thread(self.ended.wait, PATIENCE_S)


async def cut_off(work, slow):
    task = asyncio.create_task(work)
    await slow.entered()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.fixture
def make(tmp_path):
    (tmp_path / "boxes").mkdir()
    yield lambda: SubprocessRuntime(
        SubprocessConfig(directory=str(tmp_path / "boxes")), journal=Journal(tmp_path / "journal")
    )
    assert list((tmp_path / "boxes").iterdir()) == []
    assert list(Journal(tmp_path / "journal").entries()) == []


async def test_a_box_is_removed_after_a_reset_that_was_cut_off(make, monkeypatch):
    """Two threads that empty one box miss each other's files, and a box that is half removed was forgotten."""
    slow = Slow(boxdir.clear)
    monkeypatch.setattr(boxdir, "clear", slow)
    box = make()
    await box.start()
    await box.write("deep/er/file", b"x")
    await cut_off(box.reset(), slow)
    stopping = asyncio.create_task(box.stop())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await asyncio.shield(stopping)
    slow.go_on.set()
    await stopping
    assert slow.most == 1


async def test_a_box_that_is_made_too_late_stays_written_down(tmp_path, monkeypatch):
    """Its start was given up, and so was its stop: a sweep finds what the thread still makes."""
    slow = Slow(BoxDir.make)
    monkeypatch.setattr(BoxDir, "make", lambda box: slow(box))
    monkeypatch.setattr(subprocess, "_CLOSE_S", 0.05)
    journal = Journal(tmp_path / "journal")
    box = SubprocessRuntime(SubprocessConfig(directory=str(tmp_path)), journal=journal)
    with pytest.raises(RuntimeFault, match="did not end within"):
        await box.start()
    slow.go_on.set()
    await slow.over()
    (entry,) = journal.entries()
    await subprocess.free(entry.clues)
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]


async def test_a_stop_waits_for_a_reset_that_is_under_way(make, monkeypatch):
    slow = Slow(boxdir.clear)
    monkeypatch.setattr(boxdir, "clear", slow)
    box = make()
    await box.start()
    await box.write("file", b"x")
    resetting = asyncio.create_task(box.reset())
    await slow.entered()
    stopping = asyncio.create_task(box.stop())
    await asyncio.sleep(0)
    slow.go_on.set()
    await stopping
    with pytest.raises(RuntimeFault):
        await resetting
    assert slow.most == 1


@pytest.mark.parametrize("end", ["stop", "reset"])
async def test_a_write_that_was_cut_off_does_not_come_back_later(make, monkeypatch, end):
    slow = Slow(BoxDir.write)
    monkeypatch.setattr(BoxDir, "write", lambda box, path, data: slow(box, path, data))
    box = make()
    await box.start()
    await cut_off(box.write("deep/file", b"x"), slow)
    ending = asyncio.create_task(getattr(box, end)())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await asyncio.shield(ending)
    slow.go_on.set()
    await slow.over()
    await ending
    if end == "reset":
        assert (await box.run(["ls", "-A"])).stdout == b""
    await box.stop()


@pytest.mark.parametrize("end", ["stop", "reset"])
async def test_a_sandbox_keeps_its_root_open_for_whoever_works_there(tmp_path, monkeypatch, end):
    """A closed number may be the root of another box by the time that the thread uses it."""
    if await asyncio.to_thread(no_sandbox):
        pytest.skip(no_sandbox())
    seen = []

    def write(root, path, data):
        seen.append(os.fstat(root).st_ino)

    slow = Slow(write)
    monkeypatch.setattr(sandbox, "write_file", slow)
    async with sandbox.SandboxRuntime(journal=Journal(tmp_path / "journal")) as box:
        root = os.fstat(box._box.root).st_ino
        await cut_off(box.write("file", b"x"), slow)
        ending = asyncio.create_task(getattr(box, end)())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await asyncio.shield(ending)
        slow.go_on.set()
        await slow.over()
        await ending
    assert seen == [root]


def test_what_is_not_removed_is_told(tmp_path, monkeypatch):
    box = BoxDir(str(tmp_path / "box"))
    box.remove()
    box.make()
    box.write("file", b"x")

    def meets_another(directory):
        raise FileNotFoundError(2, "gone under us")

    with monkeypatch.context() as patch:
        patch.setattr(boxdir, "clear", meets_another)
        with pytest.raises(RuntimeFault, match="could not remove the box"):
            box.remove()
    box.remove()
    assert list(tmp_path.iterdir()) == []


async def test_chores_are_counted_until_they_are_done():
    chores, slow = Chores(), Slow(lambda: 1 / 0)
    await cut_off(chores.do(slow), slow)
    assert repr(chores) == "<Chores 1 going on>"
    slow.go_on.set()
    await chores.done()
    assert repr(chores) == "<Chores 0 going on>"
    assert await chores.do(str, 5) == "5"
