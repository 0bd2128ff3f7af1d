"""The lives of workers, with time as a parameter."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rollwright.serve.slots import Phase, Record, Slots, SlotSettings, SlotsSpent

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
        slots.beat(life, 0.0, "", {}, round * 1000.0 + 200.0)
        slots.buried(life, "it died", round * 1000.0 + 200.0)
    assert slots._slots[0].record.deaths == 1


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
    assert [happening.what for happening in slots.happenings] == ["ready", "relieved", "left"]


def test_workers_that_never_fit_their_budget_end_the_run_and_say_so():
    slots = Slots(1, SlotSettings(memory_mb=100, max_restarts=2, backoff_s=1, health_s=60), 0.0)
    for now, next_start in ((0.0, 0.0), (10.0, 11.0)):
        life = ready(slots, now)
        slots.beat(life, 0.0, "", {"rss_mb": 101.0}, now)
        assert slots.overgrown() == [life]
        assert bool(slots.due(now, room=0)) is False
        assert slots._slots[0].due == next_start
    life = ready(slots, 11.0)
    slots.beat(life, 0.0, "", {"rss_mb": 123.0}, 14.0)
    with pytest.raises(SlotsSpent, match="had to be replaced 3 times in a row; the last time it held 123 MB after 3 s"):
        slots.overgrown()


def test_one_that_grew_after_a_time_of_health_leaves_no_mark():
    slots = Slots(1, SlotSettings(memory_mb=100, max_restarts=0, health_s=60), 0.0)
    for round in range(4):
        life = ready(slots, round * 100.0)
        slots.beat(life, 0.0, "", {"rss_mb": 101.0}, round * 100.0 + 60.0)
        assert slots.overgrown() == [life]
        slots.buried(life, "it exited with 0", round * 100.0 + 61.0)
    assert slots._slots[0].record.deaths == 0


def test_workers_that_grow_by_their_work_are_replaced_for_as_long_as_they_do_some():
    slots = Slots(1, SlotSettings(memory_mb=100, max_restarts=0, health_s=60), 0.0)
    for round in range(5):
        life = ready(slots, round * 2.0)
        slots.beat(life, 0.0, "", {"rss_mb": 101.0, "done": 1.0}, round * 2.0 + 1.0)
        assert slots.overgrown() == [life]


def test_a_pause_is_bounded_however_often_something_dies():
    record = Record(SlotSettings(max_restarts=10_000))
    assert [record.add() for _ in range(5000)][-1] == 30.0


def test_scaling_adds_at_once_and_takes_away_gently():
    slots = Slots(1, SETTINGS, 0.0)
    ready(slots, 0.0)
    assert slots.scale(3, 1.0) == []
    assert [life.slot for life in slots.due(1.0)] == [1, 2]
    leaving = slots.scale(1, 2.0)
    assert [life.slot for life in leaving] == [1, 2]
    assert slots.due(2.0) == []


class LivesOfWorkers(RuleBasedStateMachine):
    """Whatever is ordered and whoever dies: nobody is taken for somebody else, every place is filled again after its
    pause, and a place whose workers go wrong too often ends the run, and no other does."""

    def __init__(self):
        super().__init__()
        self.settings = SlotSettings(max_restarts=2, backoff_s=1, max_backoff_s=4, health_s=50, memory_mb=100)
        self.now = 0.0
        self.slots = Slots(2, self.settings, self.now)
        self.count = 2
        self.alive = []
        self.numbers = set()
        self.faults = {0: 0, 1: 0}
        self.due = {0: 0.0, 1: 0.0}
        self.start(prove=True)

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 3.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(prove=st.booleans())
    def start(self, prove):
        for life in self.slots.due(self.now):
            assert life.number not in self.numbers, "two workers under one number"
            assert self.due[life.slot] <= self.now
            self.numbers.add(life.number)
            self.alive.append(life)
            if prove:
                self.slots.arrived(life, b"peer%d" % life.number, self.now)
                self.slots.proven(life, self.now)
        staying = sorted(life.slot for life in self.alive if life.phase is not Phase.LEAVING)
        assert staying == [slot for slot in range(self.count) if slot in staying], "two workers in one place"
        assert all(slot in staying for slot in range(self.count) if self.due[slot] <= self.now), "an empty place"

    def beat(self, life, rss_mb):
        assert self.slots.life(life.slot, life.number) is life
        self.slots.beat(life, 0.0, "", {"rss_mb": rss_mb}, self.now)
        assert life.vitals == {"rss_mb": rss_mb}
        well = life.phase is Phase.READY and self.now - life.ready_since >= 50
        if well:
            self.faults[life.slot] = 0
        return well

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def be_well(self, data):
        self.now += 50
        self.beat(data.draw(st.sampled_from(self.alive)), 60.0)

    @precondition(lambda self: any(life.phase is Phase.READY for life in self.alive))
    @rule(data=st.data())
    def grow(self, data):
        life = data.draw(st.sampled_from([life for life in self.alive if life.phase is Phase.READY]))
        well = self.beat(life, 101.0)
        grown = self.slots.overgrown() if well else self.faulty(life.slot, self.slots.overgrown)
        assert grown in ([life], "spent")
        assert life.phase is Phase.LEAVING

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def die(self, data):
        life = data.draw(st.sampled_from(self.alive))
        self.alive.remove(life)
        assert self.slots.life(life.slot, life.number) is life, "its death would go unnoticed"
        if life.phase is Phase.LEAVING:
            self.slots.buried(life, "it was killed", self.now)
        else:
            self.faulty(life.slot, lambda: self.slots.buried(life, "it was killed", self.now))
        assert self.slots.life(life.slot, life.number) is None

    @rule(count=st.integers(0, 3))
    def scale(self, count):
        leaving = self.slots.scale(count, self.now)
        assert all(life.slot >= count and life.phase is Phase.LEAVING for life in leaving)
        for slot in range(self.count, count):
            self.faults[slot], self.due[slot] = 0, self.now
        self.count = count

    @rule(slot=st.sampled_from([None, 0, 1]))
    def drain(self, slot):
        self.slots.leave(slot)

    def faulty(self, slot, happen):
        """Something that stands on the record of its place happens there."""
        self.faults[slot] += 1
        pause = 0.0 if self.faults[slot] == 1 else min(2.0 ** (self.faults[slot] - 2), 4)
        self.due[slot] = self.now + pause
        if self.faults[slot] <= 2:
            return happen()
        with pytest.raises(SlotsSpent, match=f"^worker {slot} .* {self.faults[slot]} times in a row"):
            happen()
        return "spent"

    @invariant()
    def everybody_is_known(self):
        assert sorted(map(id, self.slots.lives)) == sorted(map(id, self.alive))
        assert self.slots.count == self.count

    @invariant()
    def every_fault_is_on_record(self):
        assert [slot.record.deaths for slot in self.slots._slots.values()] == [
            self.faults[n] for n in range(self.count)
        ]


TestLivesOfWorkers = LivesOfWorkers.TestCase
TestLivesOfWorkers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
