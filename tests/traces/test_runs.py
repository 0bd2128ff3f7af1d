"""The run directory: nothing finished is lost, nothing is there twice, damage is named."""

import errno
import os
import tomllib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollwright.traces import RunDirectory, read_traces
from rollwright.traces import runs as runs_module
from rollwright.traces.runs import ARRAYS, FAILURES, TRACES, cut_torn_line
from rollwright.traces.toml import differing_key, write_toml
from rollwright.wire import CallRecord, Failure, Layer, TokenSegment, Trace, UsageError
from strategies import same, traces

CONFIG = {"taskset": {"name": "gsm8k"}, "seed": 1}


def keyed(some):
    """Traces with keys of their own, none of them failed."""
    return [msgspec.structs.replace(trace, task_id=f"t{n}", failure=None) for n, trace in enumerate(some)]


@given(st.lists(traces, max_size=4))
@settings(max_examples=40)
def test_what_was_appended_is_read_back(tmp_path_factory, some):
    path = tmp_path_factory.mktemp("run")
    some = keyed(some)
    with RunDirectory.create(path, CONFIG) as run:
        for trace in some:
            run.append([trace])
    back = list(read_traces(path))
    assert len(back) == len(some)
    assert all(map(same, back, some))
    with RunDirectory.resume(path, CONFIG) as run:
        assert run.done == {trace.key for trace in some}


@given(st.lists(traces, min_size=1, max_size=3), st.data())
@settings(max_examples=60)
def test_a_kill_at_any_byte_loses_no_whole_line(tmp_path_factory, some, data):
    path = tmp_path_factory.mktemp("run")
    some = keyed(some)
    with RunDirectory.create(path, CONFIG) as run:
        run.append(some)
    text = (path / TRACES).read_bytes()
    cut = data.draw(st.integers(0, len(text)))
    (path / TRACES).write_bytes(text[:cut])
    whole = text[:cut].count(b"\n")
    with RunDirectory.resume(path, CONFIG) as run:
        assert len(run.done) == whole
        run.append([trace for trace in some if trace.key not in run.done])
    back = {trace.key: trace for trace in read_traces(path)}
    assert len(back) == len(some)
    assert all(same(back[trace.key], trace) for trace in some)


def test_a_rollout_is_there_once(tmp_path):
    with RunDirectory.create(tmp_path / "run", CONFIG) as run:
        run.append([Trace("a", 0)])
        with pytest.raises(ValueError, match="already in"):
            run.append([Trace("a", 0)])
        run.append([Trace("a", 1)])
    assert [trace.key for trace in read_traces(tmp_path / "run")] == [("a", 0), ("a", 1)]


def test_failures_lie_apart_and_may_be_tried_again(tmp_path):
    failed = Trace("a", 0, failure=Failure(Layer.TASK, "TaskBroken", "nan"))
    with RunDirectory.create(tmp_path, CONFIG) as run:
        run.append([failed])
    with RunDirectory.resume(tmp_path, CONFIG) as run:
        assert run.done == set()
        run.append([failed, Trace("a", 0)])
    assert len(list(read_traces(tmp_path, FAILURES))) == 2
    assert [trace.key for trace in read_traces(tmp_path)] == [("a", 0)]


def test_a_changed_setting_is_named(tmp_path):
    RunDirectory.create(tmp_path, CONFIG).close()
    with pytest.raises(UsageError, match=r"taskset\.name was 'gsm8k' and is now 'math'"):
        RunDirectory.resume(tmp_path, {"taskset": {"name": "math"}, "seed": 1})
    with pytest.raises(UsageError, match="seed was 1 and is now unset"):
        RunDirectory.resume(tmp_path, {"taskset": {"name": "gsm8k"}})
    RunDirectory.resume(tmp_path, CONFIG | {"seed": 2}, may_change=frozenset({"seed"})).close()


def test_two_processes_do_not_write_to_one_run(tmp_path):
    with RunDirectory.create(tmp_path, CONFIG), pytest.raises(UsageError, match="another process"):
        RunDirectory.resume(tmp_path, CONFIG)


def test_a_run_is_not_begun_twice_and_nothing_is_resumed_from_nothing(tmp_path):
    with pytest.raises(UsageError, match="no run to resume"):
        RunDirectory.resume(tmp_path, CONFIG)
    RunDirectory.create(tmp_path, CONFIG).close()
    with pytest.raises(UsageError, match="--resume"):
        RunDirectory.create(tmp_path, CONFIG)


def test_damage_in_the_middle_is_named(tmp_path):
    with RunDirectory.create(tmp_path, CONFIG) as run:
        run.append([Trace("a", 0), Trace("b", 0)])
    lines = (tmp_path / TRACES).read_bytes().splitlines(keepends=True)
    (tmp_path / TRACES).write_bytes(b"{}}\n" + lines[1])
    with pytest.raises(UsageError, match=r"line 1 of .* is damaged"):
        RunDirectory.resume(tmp_path, CONFIG)
    (tmp_path / TRACES).write_bytes(lines[0] + lines[1])
    RunDirectory.resume(tmp_path, CONFIG).close()


def test_lost_arrays_are_named(tmp_path):
    segment = TokenSegment(-1, np.arange(3, dtype=np.int32), np.zeros(3, np.bool_), np.zeros(3, np.float32))
    trace = Trace("a", 0, calls=(CallRecord(0, tokens=segment),))
    with RunDirectory.create(tmp_path, CONFIG) as run:
        run.append([trace])
    os.truncate(tmp_path / ARRAYS, 1)
    with pytest.raises(UsageError, match="arrays"):
        list(read_traces(tmp_path))


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    with RunDirectory.create(tmp_path, CONFIG) as run:
        run.append([Trace("a", 0)])
        size = (tmp_path / TRACES).stat().st_size
        real = os.write
        monkeypatch.setattr(runs_module.os, "write", lambda descriptor, view: real(descriptor, view[:10]))
        monkeypatch.setattr(runs_module.os, "fdatasync", _no_room)
        with pytest.raises(OSError, match="No space"):
            run.append([Trace("b", 0)])
        monkeypatch.undo()
        assert (tmp_path / TRACES).stat().st_size == size
        run.append([Trace("b", 0)])
    assert [trace.key for trace in read_traces(tmp_path)] == [("a", 0), ("b", 0)]


def _no_room(descriptor):
    raise OSError(errno.ENOSPC, "No space left on device")


@given(st.binary(max_size=300_000))
@settings(max_examples=30)
def test_cutting_leaves_everything_up_to_the_last_newline(tmp_path_factory, data):
    path = Path(tmp_path_factory.mktemp("cut")) / "file"
    path.write_bytes(data)
    assert cut_torn_line(path) == len(data) - (data.rfind(b"\n") + 1)
    assert path.read_bytes() == data[: data.rfind(b"\n") + 1]


scalars = st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=20)
tables = st.recursive(
    st.dictionaries(st.text(max_size=8), scalars | st.lists(scalars, max_size=3), max_size=4),
    lambda inner: st.dictionaries(st.text(max_size=8), scalars | inner, max_size=4),
    max_leaves=8,
)


@given(tables)
def test_toml_reads_back_as_it_was(table):
    def without_empty(part):
        cleaned = {key: without_empty(value) if isinstance(value, dict) else value for key, value in part.items()}
        return {key: value for key, value in cleaned.items() if value != {}}

    assert without_empty(tomllib.loads(write_toml(table))) == without_empty(table)


def test_the_differing_key_is_dotted():
    assert differing_key({"a": {"b": 1}}, {"a": {"b": 2}}, frozenset()) == "a.b was 1 and is now 2"
    assert differing_key({"a": {"b": 1}}, {"a": {"b": 2}}, frozenset({"a.b"})) == ""
