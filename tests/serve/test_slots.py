"""The lives of workers, with time as a parameter."""

import pytest

from rollwright.serve.slots import Phase, Slots, SlotSettings, SlotsSpent

SETTINGS = SlotSettings(
    silence_s=1.5, start_timeout_s=30, stall_after_s=1, stall_limit_s=60, max_restarts=3, backoff_s=1, health_s=100
)


def ready(slots, now, slot=0):
    (life,) = [life for life in slots.due(now) if life.slot == slot]
    slots.arrived(life, b"peer%d" % life.number, now)
    slots.proven(life, now)
    return life


def test_nothing_is_ready_before_its_probe_is_answered():
    slots = Slots(1, SETTINGS, 0.0)
    (life,) = slots.due(0.0)
    assert not slots.ready
    slots.arrived(life, b"peer", 0.1)
    assert not slots.ready
    slots.proven(life, 0.2)
    assert slots.ready
    assert slots.due(0.3) == []
    assert repr(slots) == "<Slots 1: 1 ready>"


def test_silence_is_death_and_a_late_loop_is_a_stall():
    slots = Slots(2, SETTINGS, 0.0)
    lives = slots.due(0.0)
    for number, life in enumerate(lives):
        slots.arrived(life, b"peer%d" % number, 0.0)
        slots.proven(life, 0.0)
    silent, stalled = lives
    slots.beat(stalled, 5.0, "at task.py:3", {}, 1.6)
    assert [lost.life for lost in slots.hopeless(1.6)] == [silent]
    assert (stalled.phase, stalled.stack) == (Phase.STALLED, "at task.py:3")
    slots.beat(stalled, 0.1, "", {}, 1.7)
    assert (stalled.phase, stalled.stack) == (Phase.READY, "")


def test_a_stall_is_borne_up_to_its_limit():
    slots = Slots(1, SETTINGS, 0.0)
    life = ready(slots, 0.0)
    for second in range(1, 60):
        slots.beat(life, float(second), "at task.py:3", {}, float(second))
        assert slots.hopeless(float(second)) == []
    slots.beat(life, 60.5, "at task.py:3", {}, 60.5)
    (lost,) = slots.hopeless(60.5)
    assert "at task.py:3" in lost.why


def test_pauses_double_and_the_budget_ends():
    slots = Slots(1, SETTINGS, 0.0)
    now = 0.0
    for pause in (0.0, 1.0, 2.0):
        (life,) = slots.due(now)
        slots.buried(life, "it exited with 1", now)
        assert pause == 0.0 or slots.due(now + pause - 0.01) == []
        now += pause
    (life,) = slots.due(now)
    with pytest.raises(SlotsSpent, match="died 4 times in a row; the last time out of memory"):
        slots.buried(life, "out of memory", now)


def test_health_clears_the_record():
    slots = Slots(1, SETTINGS, 0.0)
    for round in range(10):
        life = ready(slots, round * 1000.0)
        slots.buried(life, "it died", round * 1000.0 + 200.0)
    assert slots._slots[0].deaths == 1


def test_one_that_never_answers_is_ended():
    slots = Slots(1, SETTINGS, 0.0)
    (life,) = slots.due(0.0)
    assert slots.hopeless(29.0) == []
    (lost,) = slots.hopeless(31.0)
    assert lost.life is life


def test_one_that_grew_is_relieved_and_its_successor_starts_at_once():
    slots = Slots(1, SlotSettings(memory_mb=100), 0.0)
    life = ready(slots, 0.0)
    slots.beat(life, 0.0, "", {"rss_mb": 150.0, "shelf_mb": 60.0}, 1.0)
    assert slots.overgrown() == []
    slots.beat(life, 0.0, "", {"rss_mb": 101.0}, 1.0)
    assert slots.overgrown() == [life]
    assert life.phase is Phase.LEAVING
    (successor,) = slots.due(1.0)
    assert (successor.slot, successor.number) == (0, 2)
    slots.buried(life, "it exited with 0", 2.0)
    assert slots._slots[0].deaths == 0


def test_scaling_adds_at_once_and_takes_away_gently():
    slots = Slots(1, SETTINGS, 0.0)
    ready(slots, 0.0)
    assert slots.scale(3, 1.0) == []
    assert [life.slot for life in slots.due(1.0)] == [1, 2]
    leaving = slots.scale(1, 2.0)
    assert [life.slot for life in leaving] == [1, 2]
    assert slots.due(2.0) == []
