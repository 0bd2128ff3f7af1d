"""A group that has landed is the same in memory, in its file and after a crash; failed rollouts follow the policy."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.call_trees import FAILURE, assert_same, chat, worlds
from rollwright.orchestrator import landing, writing
from rollwright.orchestrator.batches import decode_batch
from rollwright.orchestrator.drafts import samples_of
from rollwright.orchestrator.filters import Length, Mode, make_filters
from rollwright.orchestrator.groups import Fate, Outcome, Ticket
from rollwright.orchestrator.landing import discard, land, recover
from rollwright.orchestrator.samples import ErrorPolicy
from rollwright.wire import CallRecord, Routing, Stop
from rollwright.wire.arrays import column

NONE = make_filters().rollout


def ticket(number: int = 3, size: int = 2) -> Ticket:
    return Ticket(number, "math", task=5, first_attempt=8, size=size, version=1)


def failed(trace, **changes):
    return msgspec.structs.replace(trace, failure=FAILURE, stop=Stop.FAILED, **changes)


@settings(max_examples=60)
@given(st.lists(worlds(max_calls=5), min_size=1, max_size=3), st.sampled_from(ErrorPolicy))
def test_a_group_is_the_same_in_memory_in_its_file_and_after_a_crash(group, errors):
    traces = [world.trace for world in group]
    where = ticket(size=len(traces))
    in_memory, expected = land(where, traces, filters=NONE, errors=errors, directory=None)
    with tempfile.TemporaryDirectory() as name:
        landed, members = land(where, traces, filters=NONE, errors=errors, directory=Path(name))
        recovered = recover(Path(name))
    assert msgspec.structs.replace(landed, path="") == in_memory
    assert recovered == [] if not any(expected) else recovered[0][0] == landed
    for found in [members, *(kept for _, kept in recovered)]:
        assert [len(samples) for samples in found] == [len(samples) for samples in expected]
        for ours, theirs in zip(found, expected, strict=True):
            for left, right in zip(ours, theirs, strict=True):
                assert_same(left, right)
                assert not left.ids.flags.writeable
                assert not right.ids.flags.writeable


@given(worlds())
def test_what_lands_are_the_samples_of_the_trace_under_their_ticket(world):
    landed, (samples,) = land(ticket(size=1), [world.trace], filters=NONE, directory=None)
    (arrival,) = landed.arrivals
    expected = samples_of(world.trace)
    for sample, plain in zip(samples, expected, strict=True):
        assert (sample.group, sample.source) == (3, "math")
        assert_same(msgspec.structs.replace(sample, group=-1, source=""), plain)
    assert arrival.tokens == sum(len(sample.ids) for sample in samples)
    assert arrival.trained_tokens == sum(int(sample.mask.sum()) for sample in samples)
    columns = ("ids", "mask", "logprobs", "span_lengths", "span_versions", "routed", "routed_hole")
    arrays = [array for sample in samples for name in columns if (array := getattr(sample, name)) is not None]
    assert arrival.bytes == sum(array.nbytes for array in arrays)
    spoken = [call.version for call in world.log if call.answer and not call.failed]
    assert (arrival.oldest_version, arrival.newest_version) == (min(spoken, default=0), max(spoken, default=0))


def test_a_failed_rollout_is_dropped_or_keeps_its_place_by_policy(tmp_path):
    traces = [chat(2, reward=1.0), failed(chat(2, reward=0.5), info={"agent": "white"})]
    dropped, members = land(ticket(), traces, filters=NONE, errors=ErrorPolicy.DROP, directory=tmp_path)
    assert [len(samples) for samples in members] == [1, 0]
    assert dropped.arrivals[1].outcome == Outcome(Fate.FAILED, "engine/EngineUnavailable")
    masked, members = land(ticket(), traces, filters=NONE, errors=ErrorPolicy.MASK, directory=tmp_path)
    (sample,) = members[1]
    assert not sample.mask.any()
    assert sample.ids.tolist() == members[0][0].ids.tolist()
    assert masked.arrivals[1].outcome == Outcome(Fate.TRAINED, "masked:engine/EngineUnavailable")
    for arrival in (dropped.arrivals[1], masked.arrivals[1]):
        assert (arrival.finished, arrival.trained_tokens, arrival.agent) == (False, 0, "white")
    assert masked.arrivals[1].tokens == len(sample.ids)


@pytest.mark.parametrize(
    "trace",
    [
        failed(chat(), calls=()),
        failed(chat(answer=0)),
        failed(chat(), calls=(CallRecord(prompt=0, reply=1),)),
        msgspec.structs.replace(chat(), stop=Stop.CANCELLED),
        msgspec.structs.replace(chat(), trainable=False),
    ],
)
def test_what_has_nothing_to_show_is_dropped_under_either_policy(trace):
    landed, members = land(ticket(size=1), [trace], filters=NONE, errors=ErrorPolicy.MASK)
    assert members == [()]
    assert landed.arrivals[0].outcome.fate is not Fate.TRAINED


def test_a_reward_that_is_no_number_spoils_no_sum():
    trace = msgspec.structs.replace(chat(), reward=float("nan"))
    landed, ((sample,),) = land(ticket(size=1), [trace], filters=NONE, errors=ErrorPolicy.MASK)
    assert (sample.reward, landed.arrivals[0].reward, landed.arrivals[0].finished) == (0.0, 0.0, False)
    assert not sample.mask.any()


def test_a_call_that_failed_inside_a_rollout_takes_nothing_from_the_rest():
    trace = chat(2)
    retried = msgspec.structs.replace(trace, calls=(*trace.calls, CallRecord(prompt=0, failure=FAILURE)))
    for errors in ErrorPolicy:
        landed, ((sample,),) = land(ticket(size=1), [retried], filters=NONE, errors=errors)
        assert_same(msgspec.structs.replace(sample, group=-1, source=""), samples_of(trace)[0])
        assert landed.arrivals[0].outcome == Outcome(Fate.TRAINED)


def test_flags_are_noted_in_the_file(tmp_path):
    filters = make_filters([Length(max_sampled_tokens=3, mode=Mode.ENFORCE)])
    landed, _ = land(ticket(), [chat(1), chat(2)], filters=filters.rollout, directory=tmp_path)
    assert [arrival.flags for arrival in landed.arrivals] == [(), ("length",)]
    assert recover(tmp_path)[0][0] == landed


def test_what_is_torn_is_removed_and_told(tmp_path, caplog):
    for number in range(4):
        land(ticket(number), [chat(2), chat(3)], filters=NONE, directory=tmp_path)
    whole = (tmp_path / "group-00000001.rwg").read_bytes()
    (tmp_path / "group-00000001.rwg").write_bytes(whole[:-1])
    (tmp_path / "group-00000002.rwg").write_bytes(b"")
    (tmp_path / "group-00000003.rwg").write_bytes(bytes([whole[0], *whole[1:40], whole[40] ^ 1, *whole[41:]]))
    (tmp_path / ".group-00000004.rwg.unfinished").write_bytes(whole)
    (tmp_path / "batch-00000001.rwb").write_bytes(b"not ours")
    assert [landed.ticket.number for landed, _ in recover(tmp_path)] == [0]
    assert sorted(os.listdir(tmp_path)) == ["batch-00000001.rwb", "group-00000000.rwg"]
    assert [f"group-0000000{number}.rwg is torn" in caplog.text for number in (0, 1, 2, 3)] == [False, True, True, True]


def test_groups_come_back_in_the_order_of_their_tickets(tmp_path):
    for number in (100_000_000, 7, 99_999_999):
        land(ticket(number, size=1), [chat()], filters=NONE, directory=tmp_path)
    assert [landed.ticket.number for landed, _ in recover(tmp_path)] == [7, 99_999_999, 100_000_000]
    assert recover(tmp_path / "absent") == []


def test_a_group_that_is_let_go_stays_readable_to_those_who_hold_it(tmp_path):
    landed, ((sample,), _) = land(ticket(), [chat(2), chat(2)], filters=NONE, directory=tmp_path)
    discard(landed)
    discard(landed)
    assert os.listdir(tmp_path) == []
    assert_same(msgspec.structs.replace(sample, group=-1, source=""), samples_of(chat(2))[0])


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(OSError, match="No space left"):
        land(ticket(), [chat(), chat()], filters=NONE, directory=tmp_path)
    assert os.listdir(tmp_path) == []


@settings(max_examples=30)
@given(worlds(), st.integers(1, 7))
def test_a_kernel_that_takes_little_at_a_time_changes_nothing(world, most):
    write = os.pwritev

    def stingy(descriptor, buffers, offset):
        return write(descriptor, [memoryview(buffers[0])[:most]], offset)

    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwritev", stingy)
        patch.setattr(writing, "MOST_BUFFERS", 2)
        _, (members,) = land(ticket(size=1), [world.trace], filters=NONE, directory=Path(name))
    _, (expected,) = land(ticket(size=1), [world.trace], filters=NONE)
    for left, right in zip(members, expected, strict=True):
        assert_same(left, right)


def test_rows_that_nobody_delivered_take_no_room_on_the_disk(tmp_path):
    calls = chat(2, new=4_000, answer=4_000).calls
    rows = column(np.ones((10, 48, 8)), "u1")
    late = msgspec.structs.replace(calls[1].tokens, routing=Routing(8_000, rows))
    trace = msgspec.structs.replace(chat(), calls=(calls[0], msgspec.structs.replace(calls[1], tokens=late)))
    landed, ((sample,),) = land(ticket(size=1), [trace], filters=NONE, directory=tmp_path)
    assert sample.routed.nbytes == 16_000 * 48 * 8
    assert np.flatnonzero(~sample.routed_hole).tolist() == list(range(8_000, 8_010))
    on_disk = os.stat(landed.path).st_blocks * 512
    if on_disk > landed.bytes:
        pytest.skip("this file system keeps no holes")
    assert on_disk < landed.bytes / 8


CHILD = """
import itertools, os, signal, sys
from pathlib import Path
from orchestrator.call_trees import chat
from rollwright.orchestrator.filters import make_filters
from rollwright.orchestrator.groups import Ticket
from rollwright.orchestrator.landing import discard, land, recover

calls = itertools.count()

def deadly(name, at):
    call = getattr(os, name)
    def counted(*arguments):
        if next(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)
    setattr(os, name, counted)

directory = Path(sys.argv[1])
for at in itertools.count():
    if (child := os.fork()) == 0:
        for name in ("open", "ftruncate", "pwritev", "fdatasync", "replace", "fsync", "close"):
            deadly(name, at)
        traces, none = [chat(3, reward=1.0)] * 2, make_filters().rollout
        land(Ticket(at, "s", 0, 0, 2), traces, filters=none, directory=directory, durable=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    groups = recover(directory)
    whole = [[sample.ids[sample.mask].tolist() for sample in samples] for _, members in groups for samples in members]
    clean = os.listdir(directory) == [Path(landed.path).name for landed, _ in groups]
    print(at, os.WIFSIGNALED(status), len(groups), whole in ([], [[[7] * 6]] * 2), clean)
    for landed, _ in groups:
        discard(landed)
    if not os.WIFSIGNALED(status):
        break
"""


def test_killed_at_any_call_of_the_system_a_group_is_there_whole_or_not_at_all(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stderr
    *killed, last = [line.split() for line in run.stdout.splitlines()]
    assert len(killed) > 10
    # Before the rename there is nothing, after it there is all; nothing torn is found and nothing is left lying.
    groups = [line[2] for line in killed]
    assert groups == sorted(groups)
    assert set(groups) == {"0", "1"}
    assert last[1:3] == ["False", "1"]
    assert {tuple(line[3:]) for line in [*killed, last]} == {("True", "True")}
    assert "torn" not in run.stderr


def test_the_file_of_a_group_is_a_batch(tmp_path):
    landed, members = land(ticket(), [chat(2), chat(3)], filters=NONE, directory=tmp_path)
    batch = decode_batch(Path(landed.path).read_bytes())
    assert batch.step == 0
    for left, right in zip(batch.samples, [sample for samples in members for sample in samples], strict=True):
        assert_same(left, right)


@pytest.mark.parametrize("durable", [True, False])
def test_a_durable_group_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch, durable):
    order = []
    for name in ("fdatasync", "fsync", "replace"):
        call = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, name=name, call=call: (order.append(name), call(*args))[1])
    land(ticket(), [chat(2), chat(3)], filters=NONE, directory=tmp_path, durable=durable)
    assert order == (["fdatasync", "replace", "fsync"] if durable else ["replace"])


@pytest.mark.parametrize("durable", [True, False])
def test_after_a_power_cut_only_durable_groups_are_believed(tmp_path, monkeypatch, caplog, durable):
    """A file that was never brought to the disk may have the right length and zeros for tokens."""
    land(ticket(), [chat(2), chat(3)], filters=NONE, directory=tmp_path, durable=durable)
    assert len(recover(tmp_path)) == 1
    monkeypatch.setattr(landing, "_boot", lambda: "the next one")
    assert len(recover(tmp_path)) == durable
    assert len(os.listdir(tmp_path)) == durable
    assert ("not brought to the disk" in caplog.text) is not durable
