"""Slices of a Ray cluster, with time as a parameter and without Ray."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.serve.launching import Exit
from rollwright.serve.ray.lines import MAX_LINE_BYTES, Ended, FromDriver, Kill, Lines, State, Want, line
from rollwright.serve.ray.settings import RaySettings
from rollwright.serve.ray.slices import Report, Slices

SETTINGS = RaySettings(slice_workers=2, max_restarts=2, backoff_s=1.0, health_s=100.0, silence_s=3.0)


def speaking(workers=4, now=0.0):
    slices = Slices(SETTINGS)
    slices.resize(workers, now)
    for slice in slices.all:
        slices.heard(slice, Report(f"s{slice.number}", f"node{slice.number}"), now)
    return slices


def test_there_is_no_room_before_a_supervisor_has_spoken():
    slices = Slices(SETTINGS)
    added, gone = slices.resize(3, 0.0)
    assert (len(added), gone, slices.room(0.0)) == (2, [], 0)
    assert slices.place((0, 1), 0.0) is None
    slices.heard(added[0], Report("a", "node"), 0.1)
    assert slices.room(0.1) == 2
    assert repr(slices) == "<Slices 1 of 2 there, 0 workers>"


def test_workers_are_spread_and_no_slice_takes_more_than_its_seats():
    slices = speaking()
    placed = [slices.place((number, 1), 0.0).number for number in range(4)]
    assert sorted(placed) == [0, 0, 1, 1]
    assert placed[0] != placed[1]
    assert slices.place((4, 1), 0.0) is None


def test_an_end_is_told_once_however_often_it_is_reported():
    slices = speaking(2)
    (slice,) = slices.all
    slices.place((0, 1), 0.0)
    report = Report("s0", "node0", ((1, Exit(0, 1, "it exited with 1")),))
    assert slices.heard(slice, report, 0.2) == [Exit(0, 1, "it exited with 1")]
    assert slices.heard(slice, report, 0.4) == []
    assert slices.room(0.4) == 2


def test_a_silent_supervisor_is_given_up_with_its_workers_and_its_node_is_suspected():
    slices = speaking()
    key = (5, 2)
    slice = slices.place(key, 0.0)
    other = next(one for one in slices.all if one is not slice)
    slices.heard(other, Report(other.name, other.node), 3.5)
    assert slices.silent(2.9) == []
    assert slices.silent(3.5) == [slice]
    (exit,) = slices.lost(slice, "node fell silent", 3.5)
    assert (exit.slot, exit.life) == key
    assert list(slices.suspects) == [f"node{slice.number}"]
    assert slices.silent(100.0) == [other]
    assert slices.room(3.5) == 2
    # The first death is forgiven at once; the next supervisor has room as soon as it speaks.
    slices.heard(slice, Report("next", "elsewhere"), 5.0)
    assert slices.place((6, 1), 5.0) is slice


def test_one_that_ray_started_again_has_lost_its_workers_and_rests():
    slices = speaking(2)
    (slice,) = slices.all
    for death, pause in enumerate((0.0, 1.0), start=1):
        now = death * 10.0
        slices.heard(slice, Report(slice.name, "node0"), now - 0.1)
        slices.place((0, death), now - 0.1)
        exits = slices.heard(slice, Report(f"again{death}", "node0"), now)
        assert [(exit.slot, exit.life) for exit in exits] == [(0, death)]
        assert slices.room(now) == (0 if pause else 2)
        slices.heard(slice, Report(f"again{death}", "node0"), now + pause)
        assert slices.room(now + pause) == 2
    slices.heard(slice, Report("again3", "node0"), 30.0)
    assert slices.spent
    assert slices.room(1000.0) == 0


def test_health_is_forgiving():
    slices = speaking(2)
    (slice,) = slices.all
    for round in range(1, 10):
        slices.heard(slice, Report(f"name{round}", "node0"), round * 1000.0)
        slices.heard(slice, Report(f"name{round}", "node0"), round * 1000.0 + 200.0)
    assert not slices.spent


def test_shrinking_takes_only_what_is_empty():
    slices = speaking(6)
    busy = slices.place((0, 1), 0.0)
    _, gone = slices.resize(0, 1.0)
    assert len(gone) == 2
    assert slices.all == [busy]
    slices.lost(busy, "gone", 2.0)
    assert slices.resize(0, 3.0) == ([], [busy])
    added, _ = slices.resize(4, 4.0)
    assert len({slice.number for slice in added}) == 2


@given(st.lists(st.sampled_from(["place", "end", "lose", "again", "grow", "shrink"]), max_size=60))
def test_a_worker_is_in_one_slice_and_ends_once(steps):
    slices, now, next_key, told = speaking(), 0.0, 0, []
    placed, serial = [], 0
    for number, step in enumerate(steps):
        now += 0.1
        for slice in slices.all:
            slices.heard(slice, Report(slice.name or f"new{number}", "node"), now)
        slice = slices.all[number % len(slices.all)] if slices.all else None
        if step == "place":
            next_key += 1
            if slices.place((next_key, 1), now):
                placed.append((next_key, 1))
        elif step == "end" and slice and slice.held:
            serial += 1
            key = min(slice.held)
            slice.seen = 0
            told += slices.heard(slice, Report(slice.name, "node", ((serial, Exit(*key, "")),)), now)
        elif step == "lose" and slice:
            told += slices.lost(slice, "lost", now)
        elif step == "again" and slice:
            told += slices.heard(slice, Report(f"again{number}", "node"), now)
        elif step in ("grow", "shrink"):
            slices.resize(8 if step == "grow" else 1, now)
        held = [key for one in slices.all for key in one.held]
        assert sorted([*held, *((exit.slot, exit.life) for exit in told)]) == sorted(placed)
        assert all(len(one.held) <= SETTINGS.slice_workers for one in slices.all)


def test_lines_come_whole_however_they_are_cut():
    reader, writer = os.pipe()
    try:
        lines = Lines(reader, FromDriver)
        assert lines.read() == []
        data = line(Ended(1, 2, "bye")) + line(State(3, 4, ((1, 2),)))
        os.write(writer, data[:10])
        assert lines.read() == []
        os.write(writer, data[10:])
        assert lines.read() == [Ended(1, 2, "bye"), State(3, 4, ((1, 2),))]
        assert not lines.ended
    finally:
        os.close(writer)
    assert lines.read() == []
    assert lines.ended
    os.close(reader)


def test_words_to_the_driver_are_no_words_from_it():
    reader, writer = os.pipe()
    os.write(writer, line(Want(3)) + line(Kill(1, 2)))
    os.close(writer)
    with pytest.raises(ValueError):
        Lines(reader, FromDriver).read()
    os.close(reader)
    assert MAX_LINE_BYTES > 65536
