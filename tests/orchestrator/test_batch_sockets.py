"""Batches over a socket: encrypted, for those who have the key, and the same after either side was killed."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from orchestrator import batch_sides
from orchestrator.call_trees import assert_same
from orchestrator.test_batch_files import batch_of
from rollwright.orchestrator import Batch
from rollwright.orchestrator.transports import BatchReceiver, Window
from rollwright.orchestrator.transports import desk as desk_module
from rollwright.orchestrator.transports.files import steps_in
from rollwright.orchestrator.transports.keys import Keys, keys_in, read_key
from rollwright.orchestrator.transports.letters import Fetch, write_letter
from rollwright.orchestrator.transports.pull import Pull
from rollwright.orchestrator.transports.zmq import ZmqSender
from rollwright.wire import UsageError, WireError

WAIT_S = 30.0


@pytest.fixture
async def sender(tmp_path):
    sender = ZmqSender(tmp_path, sync=False)
    yield sender
    await sender.close()


@pytest.fixture
def receivers():
    opened: list[BatchReceiver] = []

    def connect(address: str, *args, **options) -> BatchReceiver:
        opened.append(BatchReceiver(address, *args, **options))
        return opened[-1]

    yield connect
    for receiver in opened:
        receiver.close()


async def test_what_is_sent_is_received_in_order_and_acked(sender, receivers, tmp_path):
    for step in (1, 2, 3):
        await sender.send(batch_of(step))
    receiver = receivers(sender.address, key=sender.key)
    for step in (1, 2, 3):
        batch = await asyncio.to_thread(receiver.receive, WAIT_S)
        assert batch.step == step
        for ours, theirs in zip(batch_of(step).samples, batch.samples, strict=True):
            assert_same(ours, theirs)
    await asyncio.to_thread(receiver.ack, 2)
    assert sender.acked == 2
    await sender.prune(3)
    assert steps_in(tmp_path) == [3]
    again = receivers(sender.address, key=sender.key)
    assert [batch.step for batch in await asyncio.to_thread(list, again)] == [3]


async def test_a_trainer_may_come_first_and_is_not_kept_forever(sender, receivers):
    receiver = receivers(sender.address, key=sender.key)
    assert await asyncio.to_thread(list, receiver) == []
    with pytest.raises(TimeoutError, match=r"no batch of step 1 came from tcp://"):
        await asyncio.to_thread(receiver.receive, 0.05)
    waiting = asyncio.create_task(asyncio.to_thread(receiver.receive, WAIT_S))
    await sender.send(batch_of(1))
    assert (await waiting).step == 1


async def test_a_batch_that_is_slow_to_come_is_there_all_the_same(sender, receivers, monkeypatch):
    """Who iterates gets what is there, however long it takes; who has little time goes on where he was."""
    monkeypatch.setattr(Pull.__init__, "__kwdefaults__", {"chunk_bytes": 100, "ahead": 1})
    await sender.send(batch_of(1))
    receiver = receivers(sender.address, key=sender.key)
    tries = 0

    def impatient():
        nonlocal tries
        while True:
            tries += 1
            try:
                return receiver.receive(0)
            except TimeoutError:
                continue

    async with asyncio.timeout(WAIT_S):
        assert (await asyncio.to_thread(impatient)).step == 1
    assert tries > 3
    await sender.send(batch_of(2))
    assert [batch.step for batch in await asyncio.to_thread(list, receiver)] == [2]


async def test_who_iterates_without_an_orchestrator_is_not_told_that_there_is_nothing(receivers, monkeypatch):
    monkeypatch.setattr("rollwright.orchestrator.transports.receiver._PATIENCE_S", 0.05)
    receiver = receivers(
        f"tcp://127.0.0.1:{free_port()}", key=Keys(*map(bytes.decode, zmq.curve_keypair()), "t").for_trainer
    )
    with pytest.raises(TimeoutError, match="no answer came from tcp://"):
        await asyncio.to_thread(list, receiver)


async def test_arrays_are_read_only_views_of_what_came(sender, receivers):
    await sender.send(batch_of(2))
    batch = await asyncio.to_thread(receivers(sender.address, 2, key=sender.key).receive, WAIT_S)
    for sample in batch.samples:
        for name in ("ids", "mask", "logprobs", "span_lengths", "span_versions"):
            array = getattr(sample, name)
            assert not array.flags.owndata
            assert not array.flags.writeable


async def test_a_step_that_is_gone_is_said_to_be_gone(sender, receivers):
    await sender.send(batch_of(1))
    receiver = receivers(sender.address, key=sender.key)
    await asyncio.to_thread(receiver.receive, WAIT_S)
    await asyncio.to_thread(receiver.ack)
    await sender.prune(1)
    with pytest.raises(UsageError, match="step 1 was acked and is gone"):
        await asyncio.to_thread(receivers(sender.address, 1, key=sender.key).receive, WAIT_S)


async def test_whoever_shows_another_token_is_told_so(sender, receivers):
    public = base64.urlsafe_b64decode(sender.key.removeprefix("rwt_"))[:32]
    wrong = base64.urlsafe_b64encode(public + b"guessed").decode()
    with pytest.raises(UsageError, match="does not know this key"):
        await asyncio.to_thread(receivers(sender.address, key=wrong).receive, WAIT_S)


async def test_whoever_has_another_key_gets_no_answer_and_a_hint(sender, receivers, tmp_path):
    stranger = receivers(sender.address, key=keys_in(tmp_path / "other").for_trainer, poll_s=0.01)

    def until_hinted():
        while "is the key its own?" not in repr(stranger):
            with pytest.raises(TimeoutError):
                stranger.receive(0.05)

    async with asyncio.timeout(WAIT_S):
        await asyncio.to_thread(until_hinted)


async def test_whoever_does_not_encrypt_gets_no_answer(sender):
    """A plain socket cannot even ask."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.linger = 0
        plain.connect(sender.address)
        plain.send(b"hello")
        assert not await asyncio.to_thread(plain.poll, 300)


@pytest.mark.parametrize("key", ["", "rwt_", "rwt_AAAA", "no key", "rwt_" + "A" * 43])
def test_a_key_that_is_none_is_refused_before_anything_is_sent(key):
    with pytest.raises(UsageError, match=r"trainer\.key"):
        BatchReceiver("tcp://127.0.0.1:9", key=key)


def test_keys_are_made_once_and_are_their_owners(tmp_path):
    keys = keys_in(tmp_path)
    assert keys_in(tmp_path) == keys
    for name in ("orchestrator.key", "trainer.key"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert read_key((tmp_path / "trainer.key").read_text()) == (keys.public.encode(), keys.token)
    assert keys.secret not in (tmp_path / "trainer.key").read_text()
    (tmp_path / "orchestrator.key").write_text("{")
    with pytest.raises(WireError, match=r"orchestrator\.key"):
        keys_in(tmp_path)


async def test_a_socket_that_is_a_file_needs_no_key(tmp_path, receivers):
    address = f"ipc://{tmp_path / 'batches'}"
    sender = ZmqSender(tmp_path, address, sync=False)
    try:
        assert (tmp_path / "batches").stat().st_mode & 0o777 == 0o600
        await sender.send(batch_of(1))
        assert (await asyncio.to_thread(receivers(address).receive, WAIT_S)).step == 1
    finally:
        await sender.close()


async def test_an_address_that_is_taken_is_named(sender, tmp_path):
    with pytest.raises(UsageError, match="cannot listen for trainers at"):
        ZmqSender(tmp_path / "two", sender.address)


async def test_chunks_are_maps_of_the_file_and_go_when_they_are_sent(sender, receivers, monkeypatch):
    """Nothing of a batch is copied by us on its way out, and no more of it is mapped than is on its way."""
    monkeypatch.setattr(Pull.__init__, "__kwdefaults__", {"chunk_bytes": 256, "ahead": 2})
    mapped = []
    original = desk_module._map_chunk

    def spy(path, fetch):
        frames = original(path, fetch)
        mapped.append(type(frames[1].obj).__name__)
        return frames

    monkeypatch.setattr(desk_module, "_map_chunk", spy)
    await sender.send(batch_of(3))
    assert (await asyncio.to_thread(receivers(sender.address, 3, key=sender.key).receive, WAIT_S)).step == 3
    assert len(mapped) > 3
    assert set(mapped) == {"mmap"}


async def test_a_trainer_that_asks_and_never_reads_holds_little_and_stops_nobody(tmp_path, receivers, monkeypatch):
    address, asked, answered = f"ipc://{tmp_path / 'batches'}", 600, []
    original = desk_module.Desk.answer
    monkeypatch.setattr(desk_module.Desk, "answer", lambda desk, frame: answered.append(1) or original(desk, frame))
    sender = ZmqSender(tmp_path, address, sync=False)
    greedy = zmq.Context.instance().socket(zmq.DEALER)
    try:
        path = (await sender.send(Batch.of(3, batch_of(3).samples * 200))).path
        greedy.setsockopt(zmq.RCVHWM, 1)
        greedy.connect(address)
        for number in range(asked):
            greedy.send(write_letter(Fetch(number, "", 3, 0, 2**20)))
        async with asyncio.timeout(WAIT_S):
            while len(answered) < asked:
                await asyncio.sleep(0.01)
        assert Path("/proc/self/maps").read_text().count(path.name) < 100
        assert (await asyncio.to_thread(receivers(address, 3).receive, WAIT_S)).step == 3
    finally:
        greedy.close(linger=0)
        await sender.close()


async def test_the_loop_is_free_while_a_trainer_takes_its_time(tmp_path, receivers):
    sender = ZmqSender(tmp_path, window=Window(batches=1), sync=False)
    try:
        await sender.send(batch_of(1))
        second = asyncio.create_task(sender.send(batch_of(2)))
        await asyncio.wait([second], timeout=0.05)
        assert not second.done()
        receiver = receivers(sender.address, key=sender.key)
        await asyncio.to_thread(receiver.receive, WAIT_S)
        await asyncio.to_thread(receiver.ack)
        async with asyncio.timeout(WAIT_S):
            assert (await second).path.name == "batch-00000002.rwb"
    finally:
        await sender.close()


async def test_a_trainer_goes_on_in_the_middle_of_a_batch_after_the_sender_was_restarted(tmp_path, receivers):
    sender = ZmqSender(tmp_path, sync=False)
    address, key = sender.address, sender.key
    await sender.send(batch_of(1))
    await sender.send(batch_of(2))
    receiver = receivers(address, key=key)
    assert (await asyncio.to_thread(receiver.receive, WAIT_S)).step == 1
    await sender.close()
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(receiver.receive, 0.05)
    with pytest.raises(TimeoutError, match="ack of step 1"):
        await asyncio.to_thread(receiver.ack, 1, 0.05)
    sender = ZmqSender(tmp_path, address, sync=False)
    try:
        assert sender.key == key
        assert (await asyncio.to_thread(receiver.receive, WAIT_S)).step == 2
        await asyncio.to_thread(receiver.ack)
        assert sender.acked == 2
    finally:
        await sender.close()


async def test_the_last_ack_is_answered_though_the_sender_closes_upon_it(tmp_path, receivers):
    for step in range(1, 6):
        sender = ZmqSender(tmp_path, sync=False)
        await sender.send(batch_of(step))
        receiver = receivers(sender.address, key=sender.key)
        await asyncio.to_thread(receiver.receive, WAIT_S)
        acking = asyncio.create_task(asyncio.to_thread(receiver.ack, step, 5.0))
        while sender.acked < step:
            await asyncio.sleep(0)
        await sender.close()
        await acking


# Kills


def free_port() -> int:
    """Below those that the system gives to anybody, who might take it while the sender is dead."""
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", random.randint(15_000, 30_000)))
            except OSError:
                continue
            return probe.getsockname()[1]


class Side:
    """One side, started again whenever it was killed."""

    def __init__(self, verb: str, directory: Path, address: str, steps: int) -> None:
        self._command = [sys.executable, batch_sides.__file__, verb, str(directory), address, str(steps)]
        self.start()

    def start(self) -> None:
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(self._command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"started\n"

    def kill_and_start(self) -> bool:
        """False if it was done before."""
        if self.process.poll() is not None:
            return False
        self.process.send_signal(signal.SIGKILL)
        self.end()
        self.start()
        return True

    def end(self) -> int:
        self.process.communicate(timeout=60)
        return self.process.returncode


def run_with_kills(directory: Path, *, steps: int, kills: int, seed: int) -> tuple[list[str], int]:
    """The trainer's book, and how many kills met somebody. A kill comes after a random number of trained steps."""
    moments = random.Random(seed)
    keys_in(directory)
    address = f"tcp://127.0.0.1:{free_port()}"
    sides = [Side(verb, directory, address, steps) for verb in ("send", "train")]
    killed = 0
    try:
        for kill in range(kills):
            for _ in range(moments.randint(1, max(steps // kills - 1, 1))):
                sides[1].process.stdout.readline()
            killed += sides[kill % 2].kill_and_start()
        assert [side.end() for side in reversed(sides)] == [0, 0]
    finally:
        for side in sides:
            if side.process.poll() is None:
                side.process.kill()
                side.end()
    return (directory / batch_sides.BOOK).read_text().splitlines(), killed


@pytest.mark.parametrize(("kills", "steps"), [(4, 16), pytest.param(30, 150, marks=pytest.mark.soak)])
def test_kills_of_either_side_lose_nothing_and_repeat_nothing(tmp_path, kills, steps):
    book, killed = run_with_kills(tmp_path, steps=steps, kills=kills, seed=7)
    assert killed == kills
    assert book == [f"{step} {batch_sides.digest(batch_sides.batch_of(step))}" for step in range(1, steps + 1)]
