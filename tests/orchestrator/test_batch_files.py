"""Batches through a directory: whole or absent, in order, mapped."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from orchestrator.call_trees import assert_same, chat
from rollwright.orchestrator import Batch, samples_of
from rollwright.orchestrator.batches import decode_batch, encode_batch
from rollwright.orchestrator.transports import BatchReceiver, FileSender, Window
from rollwright.orchestrator.transports import files as module
from rollwright.orchestrator.transports.depot import Depot
from rollwright.orchestrator.transports.files import (
    last_step,
    read_batch,
    steps_in,
    write_acked,
    write_batch,
)
from rollwright.wire import UsageError, WireError
from rollwright.wire.mapping import map_file
from wire.test_mapping import let_the_giver_finish


def batch_of(step: int) -> Batch:
    return Batch.of(step, samples_of(chat(step)) + samples_of(chat(1, attempt=step)))


@pytest.fixture
async def sender(tmp_path):
    sender = FileSender(tmp_path / "new", sync=False)
    yield sender
    await sender.close()


async def test_what_is_sent_is_received_in_order(tmp_path, sender):
    shipped = [await sender.send(batch_of(step)) for step in (1, 2, 3)]
    assert [ship.path.name for ship in shipped] == [f"batch-0000000{step}.rwb" for step in (1, 2, 3)]
    assert [ship.bytes for ship in shipped] == [ship.path.stat().st_size for ship in shipped]
    received = list(BatchReceiver(tmp_path / "new"))
    assert [batch.step for batch in received] == [1, 2, 3]
    for step, batch in enumerate(received, 1):
        for ours, theirs in zip(batch_of(step).samples, batch.samples, strict=True):
            assert_same(ours, theirs)


def test_arrays_are_views_of_the_mapped_file(tmp_path):
    ids = read_batch(write_batch(tmp_path, batch_of(2))).samples[0].ids
    assert not ids.flags.owndata
    assert not ids.flags.writeable
    # Nothing but the array holds the map.
    assert f"{tmp_path.name}/batch-00000002.rwb" in Path("/proc/self/maps").read_text()
    del ids
    let_the_giver_finish()
    assert f"{tmp_path.name}/batch-00000002.rwb" not in Path("/proc/self/maps").read_text()


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


@pytest.mark.parametrize("moment", ["encode_batch", "write_at", "replace"])
def test_a_writer_that_dies_leaves_nothing_to_read(tmp_path, monkeypatch, moment):
    """A kill cannot run the clean-up, so the leftover is put back; the next try of the step takes its place."""

    def die(*_):
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(os if moment == "replace" else module, moment, die)
        with pytest.raises(OSError, match="no space"):
            write_batch(tmp_path, batch_of(1))
    assert os.listdir(tmp_path) == []
    (tmp_path / ".batch-00000001.rwb.unfinished").write_bytes(b"half a ba")
    assert list(BatchReceiver(tmp_path)) == []
    assert steps_in(tmp_path) == []
    write_batch(tmp_path, batch_of(1))
    assert os.listdir(tmp_path) == ["batch-00000001.rwb"]


@pytest.mark.parametrize("sync", [True, False])
def test_a_batch_is_whole_before_it_has_its_name_and_synced_before_the_writer_goes_on(tmp_path, monkeypatch, sync):
    order = []
    fsync, replace, write = os.fsync, os.replace, module.write_at
    name_of = lambda fd: os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: E731
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append(f"fsync {name_of(fd)}"), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append("replace"), replace(a, b)))
    monkeypatch.setattr(module, "write_at", lambda *args: (write(*args), order.append("written"))[0])
    write_batch(tmp_path, batch_of(1), sync=sync)
    assert order == ["written", "replace", *(["fsync batch-00000001.rwb", f"fsync {tmp_path.name}"] if sync else [])]


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


async def test_writing_happens_in_a_thread_and_a_cancelled_send_arrives_whole(tmp_path, monkeypatch, sender):
    entered, let_go, written = threading.Event(), threading.Event(), threading.Event()
    encode = module.encode_batch

    def slow(batch):
        assert threading.current_thread() is not threading.main_thread()
        entered.set()
        let_go.wait(10)
        return encode(batch)

    def write(directory, batch, **options):
        path = write_batch(directory, batch, **options)
        written.set()
        return path

    monkeypatch.setattr(module, "encode_batch", slow)
    monkeypatch.setattr(module, "write_batch", write)
    sending = asyncio.create_task(sender.send(batch_of(1)))
    await asyncio.to_thread(entered.wait, 10)
    assert list(BatchReceiver(sender.directory)) == []
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    let_go.set()
    assert await asyncio.to_thread(written.wait, 10)
    assert [batch.step for batch in BatchReceiver(sender.directory)] == [1]


# From file to file


def landed_batch(directory) -> tuple[Path, Batch]:
    """A batch whose samples lie in the mapped file of another, as those of groups do."""
    path = write_batch(directory / "groups", Batch.of(7, samples_of(chat(3, new=30_000))), sync=False)
    samples = [sample for sample in decode_batch(map_file(path)).samples for _ in range(2)]
    return path, Batch.of(1, samples)


def test_samples_that_lie_in_files_go_from_file_to_file(tmp_path, monkeypatch):
    _, batch = landed_batch(tmp_path)
    expected = b"".join(encode_batch(batch))
    moved = []
    copy = os.copy_file_range
    monkeypatch.setattr(os, "copy_file_range", lambda *args: (moved.append(copy(*args)), moved[-1])[1])
    written = []
    write = module.write_at
    monkeypatch.setattr(module, "write_at", lambda fd, at, parts: (written.append(parts), write(fd, at, parts))[1])
    assert write_batch(tmp_path, batch, sync=False).read_bytes() == expected
    assert sum(moved) > 0.99 * 9 * batch.tokens
    assert sum(len(buffer) for buffers in written for buffer in buffers) == len(expected) - sum(moved)


@pytest.mark.parametrize("trouble", ["removed", "replaced", "never", "half", "truncated"])
def test_samples_whose_file_cannot_be_copied_from_are_written_from_memory(tmp_path, monkeypatch, trouble):
    path, batch = landed_batch(tmp_path)
    expected = b"".join(encode_batch(batch))
    copy = os.copy_file_range

    def awkward(source, target, count, *offsets):
        if trouble == "half":
            return copy(source, target, min(count, 1000), *offsets)
        if trouble == "truncated":
            return 0
        raise OSError(errno.EXDEV, "another file system")

    if trouble in ("removed", "replaced"):
        path.unlink()
    else:
        monkeypatch.setattr(os, "copy_file_range", awkward)
    if trouble == "replaced":
        path.write_bytes(bytes(len(expected)))
    assert write_batch(tmp_path, batch, sync=False).read_bytes() == expected


def test_a_disk_that_fails_while_copying_is_told(tmp_path, monkeypatch):
    _, batch = landed_batch(tmp_path)

    def broken(*_):
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(os, "copy_file_range", broken)
    with pytest.raises(OSError, match="broken"):
        write_batch(tmp_path, batch, sync=False)
    assert steps_in(tmp_path) == []


# Acks, pruning, restarts


def depot_of(directory, *steps: int, **options) -> Depot:
    depot = Depot(directory, sync=False, **options)
    for step in steps:
        depot.put(batch_of(step))
    return depot


def test_a_batch_goes_when_both_sides_are_done_with_it(tmp_path):
    depot = depot_of(tmp_path, 1, 2, 3, 4)
    receiver = BatchReceiver(tmp_path)
    assert [batch.step for batch in receiver] == [1, 2, 3, 4]
    receiver.ack(3)
    depot.look()
    assert (depot.acked, steps_in(tmp_path)) == (3, [1, 2, 3, 4])
    depot.release(2)
    assert steps_in(tmp_path) == [3, 4]
    depot.release(4)
    assert steps_in(tmp_path) == [4]
    receiver.ack()
    depot.look()
    assert (depot.acked, steps_in(tmp_path), last_step(tmp_path)) == (4, [], 4)
    assert repr(depot) == f"<Depot {tmp_path.name}: acked 4, 0 batches of 0 bytes to be acked>"


def test_some_batches_may_stay_for_people_to_look_at(tmp_path):
    depot = depot_of(tmp_path, 1, 2, 3, 4, keep_batches=2)
    depot.release(4)
    depot.acknowledge(3)
    assert steps_in(tmp_path) == [2, 3, 4]


def test_what_is_unacked_survives_both_sides(tmp_path):
    depot_of(tmp_path, 1, 2, 3)
    first = BatchReceiver(tmp_path)
    assert [first.receive(0).step, first.receive(0).step] == [1, 2]
    first.ack(1)
    assert [batch.step for batch in BatchReceiver(tmp_path)] == [2, 3]
    again = depot_of(tmp_path)
    assert (again.acked, again.last, again.unacked[0]) == (1, 3, 2)
    with pytest.raises(UsageError, match="step 3 is sent already; the next step to send is 4"):
        again.put(batch_of(3))
    again.release(3)
    again.acknowledge(3)
    with pytest.raises(UsageError, match="is 4"):
        depot_of(tmp_path, 2)


def test_a_batch_that_a_power_cut_tore_is_sent_again(tmp_path, caplog):
    depot_of(tmp_path, 1, 2)
    path = tmp_path / "batch-00000002.rwb"
    os.truncate(path, path.stat().st_size - 1)
    depot = depot_of(tmp_path)
    assert "batch-00000002.rwb is torn" in caplog.text
    assert (steps_in(tmp_path), depot.last) == ([1], 1)
    depot.put(batch_of(2))
    assert [batch.step for batch in BatchReceiver(tmp_path)] == [1, 2]


def test_an_ack_never_goes_back_nor_ahead(tmp_path):
    depot = depot_of(tmp_path, 1, 2)
    receiver = BatchReceiver(tmp_path)
    with pytest.raises(UsageError, match="last batch received is 0"):
        receiver.ack(1)
    assert len(list(receiver)) == 2
    receiver.ack(2)
    receiver.ack(1)
    depot.look()
    assert depot.acked == 2
    write_acked(tmp_path, 99)
    depot.look()
    depot.acknowledge(99)
    assert depot.acked == 2
    with pytest.raises(UsageError, match="step 3"):
        receiver.ack(3)


def test_a_slow_disk_keeps_nobody_from_asking_how_things_stand(tmp_path, monkeypatch):
    """The loop asks; an ack and a batch are written in threads."""
    depot = depot_of(tmp_path, 1)
    for name, work in (("write_acked", lambda: depot.acknowledge(1)), ("write_batch", lambda: depot.put(batch_of(2)))):
        entered, let_go = threading.Event(), threading.Event()
        original = getattr(module, name)

        def slow(*args, entered=entered, let_go=let_go, original=original, **options):
            entered.set()
            assert let_go.wait(10)
            return original(*args, **options)

        monkeypatch.setattr(module, name, slow)
        writer = threading.Thread(target=work)
        writer.start()
        assert entered.wait(10)
        seen = []
        asker = threading.Thread(target=lambda seen=seen: seen.append((depot.unacked[0], depot.acked, depot.last)))
        asker.start()
        asker.join(5)
        let_go.set()
        writer.join(10)
        assert seen == [(1, 0, 1) if name == "write_acked" else (0, 1, 1)]


def test_an_ack_that_is_no_number_is_refused(tmp_path):
    (tmp_path / "acked").write_text("three")
    with pytest.raises(WireError, match="acked"):
        BatchReceiver(tmp_path).receive(0)


async def test_a_full_window_holds_the_sender_and_nobody_else(tmp_path):
    sender = FileSender(tmp_path, window=Window(batches=2), sync=False)
    receiver = BatchReceiver(tmp_path)
    try:
        await sender.send(batch_of(1))
        await sender.send(batch_of(2))
        third = asyncio.create_task(sender.send(batch_of(3)))
        done, _ = await asyncio.wait([third], timeout=0.05)
        assert not done
        assert (steps_in(tmp_path), sender.unacked[0]) == ([1, 2], 2)
        await asyncio.to_thread(receiver.receive, 5)
        await asyncio.to_thread(receiver.ack)
        async with asyncio.timeout(10):
            await third
        assert (sender.acked, steps_in(tmp_path)) == (1, [1, 2, 3])
        await sender.prune(3)
        assert steps_in(tmp_path) == [2, 3]
    finally:
        await sender.close()


async def test_a_window_that_stays_full_ends_in_a_timeout(tmp_path):
    sender = FileSender(tmp_path, window=Window(bytes=1), sync=False, timeout_s=0.05)
    try:
        await sender.send(batch_of(1))
        with pytest.raises(TimeoutError):
            await sender.send(batch_of(2))
        assert steps_in(tmp_path) == [1]
    finally:
        await sender.close()


@pytest.mark.parametrize("options", [{"batches": 0}, {"bytes": 0}])
def test_a_window_that_nothing_fits_is_refused(options):
    with pytest.raises(UsageError):
        Window(**options)
