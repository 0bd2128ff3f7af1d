"""Batches through a directory: whole or absent, in order, mapped."""

from __future__ import annotations

import asyncio
import mmap
import os
import threading

import numpy as np
import pytest

from orchestrator.call_trees import assert_same, chat
from rollwright.orchestrator import Batch, samples_of
from rollwright.orchestrator.transports import BatchReceiver, BatchWriter
from rollwright.orchestrator.transports import files as module
from rollwright.orchestrator.transports.files import read_batch, steps_in, write_batch
from rollwright.wire import WireError


def batch_of(step: int) -> Batch:
    return Batch.of(step, samples_of(chat(step)) + samples_of(chat(1, attempt=step)))


async def test_what_is_sent_is_received_in_order(tmp_path):
    writer = BatchWriter(tmp_path / "new")
    paths = [await writer.send(batch_of(step)) for step in (1, 2, 3)]
    assert [path.name for path in paths] == ["batch-00000001.rwb", "batch-00000002.rwb", "batch-00000003.rwb"]
    received = list(BatchReceiver(tmp_path / "new"))
    assert [batch.step for batch in received] == [1, 2, 3]
    for step, batch in enumerate(received, 1):
        for ours, theirs in zip(batch_of(step).samples, batch.samples, strict=True):
            assert_same(ours, theirs)


def test_arrays_are_views_of_the_mapped_file(tmp_path):
    sample = read_batch(write_batch(tmp_path, batch_of(2))).samples[0]
    owner = sample.ids
    assert not owner.flags.owndata
    assert not owner.flags.writeable
    while isinstance(owner, np.ndarray):
        owner = owner.base
    assert isinstance(owner, memoryview)
    assert isinstance(owner.obj, mmap.mmap)


def test_views_outlive_receiver_and_file(tmp_path):
    write_batch(tmp_path, batch_of(1))
    (batch,) = BatchReceiver(tmp_path)
    os.unlink(tmp_path / "batch-00000001.rwb")
    assert_same(batch.samples[0], batch_of(1).samples[0])


def test_a_receiver_begins_where_it_is_told(tmp_path):
    for step in (1, 2, 3):
        write_batch(tmp_path, batch_of(step))
    receiver = BatchReceiver(tmp_path, first_step=3)
    assert receiver.receive(timeout_s=0).step == 3
    assert repr(receiver) == f"<BatchReceiver of {tmp_path.name}, next step 4>"


class Clock:
    """Time that passes when somebody sleeps, and only then."""

    def __init__(self) -> None:
        self.now = 0.0
        self.then = {}

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment in [m for m in self.then if m <= self.now]:
            self.then.pop(moment)()


def test_receive_waits_for_the_next_batch_and_not_forever(tmp_path):
    clock = Clock()
    receiver = BatchReceiver(tmp_path / "later", clock=lambda: clock.now, sleep=clock.sleep)
    assert list(receiver) == []
    clock.then[1.5] = lambda: write_batch(tmp_path / "later", batch_of(1))
    assert receiver.receive(timeout_s=5).step == 1
    assert clock.now == pytest.approx(1.5, abs=0.1)
    with pytest.raises(TimeoutError, match="step 2"):
        receiver.receive(timeout_s=5)
    assert clock.now == pytest.approx(6.5, abs=0.1)


@pytest.mark.parametrize("moment", ["write", "fsync", "replace"])
def test_a_writer_that_dies_leaves_nothing_to_read(tmp_path, monkeypatch, moment):
    """A kill cannot run the clean-up, so the leftover is put back; the next try of the step takes its place."""

    def die(*_):
        raise OSError("no space left")

    target = {"write": (module, "encode_batch"), "fsync": (os, "fsync"), "replace": (os, "replace")}[moment]
    with monkeypatch.context() as patched:
        patched.setattr(*target, die)
        with pytest.raises(OSError, match="no space"):
            write_batch(tmp_path, batch_of(1))
    assert os.listdir(tmp_path) == []
    (tmp_path / ".batch-00000001.rwb.unfinished").write_bytes(b"half a ba")
    assert list(BatchReceiver(tmp_path)) == []
    assert steps_in(tmp_path) == []
    write_batch(tmp_path, batch_of(1))
    assert os.listdir(tmp_path) == ["batch-00000001.rwb"]


def test_the_name_appears_only_after_the_bytes_are_on_disk(tmp_path, monkeypatch):
    order = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: (order.append(f"fsync {os.path.basename(os.readlink(f'/proc/self/fd/{fd}'))}"), fsync(fd)),
    )
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append("replace"), replace(a, b)))
    write_batch(tmp_path, batch_of(1))
    assert order == ["fsync .batch-00000001.rwb.unfinished", "replace", f"fsync {tmp_path.name}"]


@pytest.mark.parametrize("content", [b"", b"short", b"\x89RWB\r\n\x1a\n" + bytes(100)])
def test_a_file_that_is_no_batch_is_refused_by_name_and_stays_next(tmp_path, content):
    (tmp_path / "batch-00000001.rwb").write_bytes(content)
    receiver = BatchReceiver(tmp_path)
    for _ in range(2):
        with pytest.raises(WireError, match="batch-00000001"):
            receiver.receive(timeout_s=0)


def test_a_batch_under_the_name_of_another_step_is_refused(tmp_path):
    os.rename(write_batch(tmp_path, batch_of(2)), tmp_path / "batch-00000001.rwb")
    with pytest.raises(WireError, match="step 2"):
        BatchReceiver(tmp_path).receive(timeout_s=0)


async def test_writing_happens_in_a_thread_and_a_cancelled_send_arrives_whole(tmp_path, monkeypatch):
    entered, let_go, written = threading.Event(), threading.Event(), threading.Event()
    encode = module.encode_batch

    def slow(batch):
        assert threading.current_thread() is not threading.main_thread()
        entered.set()
        let_go.wait(10)
        return encode(batch)

    def write(directory, batch):
        path = write_batch(directory, batch)
        written.set()
        return path

    monkeypatch.setattr(module, "encode_batch", slow)
    monkeypatch.setattr(module, "write_batch", write)
    sending = asyncio.create_task(BatchWriter(tmp_path).send(batch_of(1)))
    await asyncio.to_thread(entered.wait, 10)
    assert list(BatchReceiver(tmp_path)) == []
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    let_go.set()
    assert await asyncio.to_thread(written.wait, 10)
    assert [batch.step for batch in BatchReceiver(tmp_path)] == [1]
