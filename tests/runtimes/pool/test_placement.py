"""Placement under any order of events and any passing of time: caps, one holder, clean boxes only, oldest first."""

import random
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rollwright.runtimes.pool.boxes import CreationPaused, Phase, PoolClosed
from rollwright.runtimes.pool.config import PoolConfig
from rollwright.runtimes.pool.pacing import Breaker, Pace
from rollwright.runtimes.pool.placement import Placement
from rollwright.wire import RuntimeFault, UsageError

KEYS = "abc"
USED_ONCE = "c"
"""The shelf of a kind whose reset is the start of another box."""


class Books:
    """Does the work that placement orders, and notes what a placement must never order."""

    def __init__(self, config, seed=0):
        self.placement = Placement(config, random.Random(seed))
        self.now = 1000.0
        self.making, self.resetting, self.ending = [], [], []
        self.verified = set()
        self.waiting, self.holding = [], []
        self.made, self.gone = set(), set()
        self.begun = []
        """When each box was begun, whatever for."""

    def act(self, work):
        for box in work.make:
            assert box not in self.made
            self.made.add(box)
            self.begun.append(self.now)
            self.making.append(box)
        for box in work.reset:
            assert box not in self.verified
            if box.shelf.key in USED_ONCE:
                self.begun.append(self.now)
            self.resetting.append(box)
        for box in work.end:
            assert box not in self.ending
            assert box not in self.gone
            self.verified.discard(box)
            self.ending.append(box)
        for ticket in work.settled:
            self._settle(ticket)
        return work

    def _settle(self, ticket):
        if ticket.box is not None:
            assert ticket.box in self.verified, "a box was handed out that nobody looked at"
            assert all(other.box is not ticket.box for other in self.holding), "a box has two holders"
            same_shelf = [other for other in self.waiting if other.shelf.key == ticket.shelf.key]
            assert min(same_shelf or [ticket], key=lambda wish: wish.number).number >= ticket.number, "not oldest first"
            self.verified.discard(ticket.box)
            self.holding.append(ticket)
        if ticket in self.waiting:
            self.waiting.remove(ticket)

    def ask(self, key, **more):
        ticket, work = self.placement.ask(key, self.now, used_once=key in USED_ONCE, **more)
        if ticket.box is None and ticket.error is None:
            self.waiting.append(ticket)
        self.act(work)
        return ticket

    def finish_make(self, box, error=None):
        self.making.remove(box)
        if error is None:
            self.verified.add(box)
            self.act(self.placement.made(box, self.now))
        else:
            self.act(self.placement.not_made(box, self.now, error))

    def finish_reset(self, box, clean=True):
        self.resetting.remove(box)
        if clean:
            self.verified.add(box)
            self.act(self.placement.clean(box, self.now))
        else:
            self.act(self.placement.quarantine(box, self.now))

    def finish_end(self, box):
        self.ending.remove(box)
        self.gone.add(box)
        self.act(self.placement.freed(box, self.now))

    def leave(self, ticket):
        for place in (self.holding, self.waiting):
            if ticket in place:
                place.remove(ticket)
        self.act(self.placement.leave(ticket, self.now))

    def found_dead(self, ticket):
        self.holding.remove(ticket)
        self.waiting.append(ticket)
        self.act(self.placement.found_dead(ticket, self.now))
        if ticket.error is not None and ticket in self.waiting:
            self.waiting.remove(ticket)

    def tick(self, seconds):
        self.now += seconds
        self.act(self.placement.tick(self.now))

    def drain(self):
        """Let everything that was begun come to its end."""
        while self.making or self.resetting or self.ending:
            for box in list(self.making):
                self.finish_make(box)
            for box in list(self.resetting):
                self.finish_reset(box)
            for box in list(self.ending):
                self.finish_end(box)

    def check(self):
        config, placement = self.placement.config, self.placement
        assert len(placement.boxes) <= config.max_boxes
        assert placement.counts[Phase.MAKING] <= config.max_creating
        assert placement.boxes == self.made - self.gone
        for shelf in placement.shelves.values():
            own = [box for box in placement.boxes if box.shelf is shelf]
            assert len(own) == shelf.size == shelf.counts.total() <= config.shelf_room
            assert set(shelf.idle) == {box for box in own if box.phase is Phase.IDLE}
            assert not (shelf.idle and shelf.waiting), "somebody waits beside a clean box"
        assert {ticket for shelf in placement.shelves.values() for ticket in shelf.waiting} == set(self.waiting)
        assert self.verified == {box for box in placement.boxes if box.phase is Phase.IDLE}
        assert not self.stuck(), "somebody waits for what nothing brings"
        self.check_pace()

    def check_pace(self):
        """In any window, as many boxes are begun as the rate gives, a second's worth before it, and the jitter."""
        per_s, begun = self.placement.config.create_per_s, self.begun
        for first, since in enumerate(begun) if per_s else ():
            for last in range(first, len(begun)):
                assert last - first <= (begun[last] - since + 1.0) * per_s / 0.75 + 1e-6, "faster than the pace"

    def stuck(self):
        """Tickets wait, nothing that is under way will report, nobody holds a box, and no alarm is set."""
        busy = self.making or self.resetting or self.ending or self.holding
        return bool(self.waiting) and not busy and self.placement.wake_at(self.now) is None


configs = st.builds(
    PoolConfig,
    max_boxes=st.integers(1, 6),
    max_per_key=st.integers(0, 4),
    min_warm=st.integers(0, 2),
    max_uses=st.integers(0, 3),
    max_creating=st.integers(1, 4),
    create_tries=st.integers(1, 3),
    breaker_failures=st.integers(1, 4),
    create_per_s=st.sampled_from([0.0, 0.5, 3.0]),
    idle_ttl_s=st.sampled_from([5.0, 50.0]),
    max_age_s=st.sampled_from([20.0, 1000.0]),
)


class PlacementMachine(RuleBasedStateMachine):
    @initialize(config=configs, seed=st.integers(0, 99))
    def begin(self, config, seed):
        self.books = Books(config, seed)

    @rule(key=st.sampled_from(KEYS), lifetime_s=st.sampled_from([None, 30.0]))
    def ask(self, key, lifetime_s):
        self.books.ask(key, lifetime_s=lifetime_s)

    @rule(key=st.sampled_from(KEYS))
    def expect(self, key):
        self.books.act(self.books.placement.expect(key, self.books.now, used_once=key in USED_ONCE))

    @precondition(lambda self: self.books.making)
    @rule(data=st.data(), well=st.booleans())
    def finish_make(self, data, well):
        box = data.draw(st.sampled_from(self.books.making))
        self.books.finish_make(box, None if well else RuntimeFault("no"))

    @precondition(lambda self: self.books.resetting)
    @rule(data=st.data(), clean=st.booleans())
    def finish_reset(self, data, clean):
        self.books.finish_reset(data.draw(st.sampled_from(self.books.resetting)), clean)

    @precondition(lambda self: self.books.ending)
    @rule(data=st.data())
    def finish_end(self, data):
        self.books.finish_end(data.draw(st.sampled_from(self.books.ending)))

    @precondition(lambda self: self.books.holding or self.books.waiting)
    @rule(data=st.data())
    def leave(self, data):
        ticket = data.draw(st.sampled_from(self.books.holding + self.books.waiting))
        self.books.leave(ticket)
        self.books.leave(ticket)

    @precondition(lambda self: self.books.holding)
    @rule(data=st.data())
    def found_dead(self, data):
        self.books.found_dead(data.draw(st.sampled_from(self.books.holding)))

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 7.0, 60.0]))
    def pass_time(self, seconds):
        self.books.tick(seconds)

    @invariant()
    def laws(self):
        if hasattr(self, "books"):
            self.books.check()

    def teardown(self):
        if not hasattr(self, "books"):
            return
        books = self.books
        self.everybody_is_served_in_the_end()
        books.act(books.placement.close(books.now))
        books.holding.clear()
        books.drain()
        assert books.placement.boxes == set()
        assert books.made == books.gone, "a box was forgotten"
        assert isinstance(books.ask("a").error, PoolClosed)

    def everybody_is_served_in_the_end(self):
        books = self.books
        for _ in range(200):
            if not books.waiting:
                return
            books.drain()
            for ticket in list(books.holding):
                books.leave(ticket)
            books.drain()
            moment = books.placement.wake_at(books.now)
            if books.waiting and moment is not None:
                books.tick(moment - books.now)
            books.check()
        raise AssertionError(f"{len(books.waiting)} still wait")


PlacementMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
test_placement_keeps_its_laws = PlacementMachine.TestCase


def books(**settings_given):
    return Books(PoolConfig(create_per_s=0, **settings_given))


def test_a_released_box_is_reset_before_the_next_one_gets_it():
    pool = books()
    first = pool.ask("a")
    pool.finish_make(pool.making[0])
    box = first.box
    pool.leave(first)
    second = pool.ask("a")
    assert (second.box, pool.resetting, pool.making) == (None, [box], [])
    pool.finish_reset(box)
    assert (second.box, box.uses) == (box, 2)
    assert pool.placement.books == {"misses": 2, "creates": 1, "resets": 1}


def test_a_box_that_serves_once_is_made_up_for_at_the_pool_s_pace():
    pool = Books(PoolConfig(create_per_s=1.0))
    held = pool.ask("c")
    pool.drain()
    for _ in range(5):
        box = held.box
        pool.leave(held)
        assert (pool.resetting, pool.ending, box.uses) == ([], [box], 1)
        pool.drain()
        while not pool.placement.counts[Phase.IDLE]:
            pool.tick(pool.placement.wake_at(pool.now) - pool.now)
            pool.drain()
        held = pool.ask("c")
        assert held.box is not None, "made before anybody asks"
        pool.check()
    assert (len(pool.made), pool.placement.books["resets"]) == (6, 0)
    assert pool.now >= 1003.0, "five more at one in a second, jitter and burst taken off"


def test_what_is_owed_waits_for_the_breaker_and_is_forgotten_in_time():
    pool = books(breaker_failures=1, breaker_s=8.0, idle_ttl_s=20.0, create_tries=9)
    held = [pool.ask("c"), pool.ask("c")]
    pool.drain()
    pool.leave(held[0])
    pool.finish_make(pool.making[0], RuntimeFault("no room"))
    pool.leave(held[1])
    pool.drain()
    assert (pool.making, pool.placement.boxes) == ([], set())
    pool.tick(pool.placement.wake_at(pool.now) - pool.now)
    assert len(pool.making) == 1, "one box is tried"
    pool.finish_make(pool.making[0], RuntimeFault("no room"))
    pool.drain()
    pool.tick(30.0)
    assert (pool.making, pool.placement.shelves) == ([], {})


def test_nobody_waits_for_a_reset_that_hangs():
    pool = books()
    first = pool.ask("a")
    pool.drain()
    pool.leave(first)
    pool.ask("a")
    assert pool.making == []
    pool.tick(pool.placement.wake_at(pool.now) - pool.now)
    assert len(pool.making) == 1


def test_the_room_of_an_idle_box_goes_to_the_oldest_wish():
    pool = books(max_boxes=1)
    held = pool.ask("a")
    pool.finish_make(pool.making[0])
    older, younger = pool.ask("b"), pool.ask("a")
    pool.leave(held)
    pool.finish_reset(pool.resetting[0])
    assert (younger.box, pool.placement.books["evictions"]) == (None, 1)
    pool.finish_end(pool.ending[0])
    pool.finish_make(pool.making[0])
    assert older.box is not None
    assert younger.box is None


def test_one_wish_empties_no_more_than_one_place():
    pool = books(max_boxes=3)
    held = [pool.ask("a") for _ in range(3)]
    pool.drain()
    for ticket in held:
        pool.leave(ticket)
    pool.drain()
    pool.ask("b")
    pool.tick(1.0)
    assert [box.shelf.key for box in pool.ending] == ["a"]


def test_boxes_are_made_ahead_of_demand_while_somebody_asks():
    pool = books(min_warm=2, idle_ttl_s=10.0)
    pool.act(pool.placement.expect("a", pool.now))
    pool.drain()
    ticket = pool.ask("a")
    assert ticket.box is not None
    assert len(pool.making) == 1
    pool.drain()
    pool.leave(ticket)
    pool.drain()
    pool.tick(9.0)
    assert pool.placement.counts[Phase.IDLE] >= 2
    pool.tick(2.0)
    pool.drain()
    assert pool.placement.boxes == set()
    assert pool.placement.shelves == {}


@pytest.mark.parametrize(
    ("settings_given", "seconds", "lifetime_s"),
    [({"max_age_s": 10.0}, 10.0, None), ({}, 10.0, 20.0), ({"idle_ttl_s": 10.0}, 10.0, None)],
)
def test_an_old_box_is_not_handed_out(settings_given, seconds, lifetime_s):
    pool = books(**settings_given)
    ticket = pool.ask("a", lifetime_s=lifetime_s)
    pool.drain()
    first = ticket.box
    pool.leave(ticket)
    pool.drain()
    assert pool.placement.wake_at(pool.now) == pool.now + seconds
    pool.now += seconds
    assert pool.ask("a", lifetime_s=lifetime_s).box is None
    assert pool.ending == [first]


def test_a_box_is_freed_after_its_last_use():
    pool = books(max_uses=2)
    for _ in range(2):
        ticket = pool.ask("a")
        pool.drain()
        box = ticket.box
        pool.leave(ticket)
    assert (pool.resetting, pool.ending, box.uses) == ([], [box], 2)


def test_failures_in_a_row_open_the_breaker_and_one_try_closes_it():
    pool = books(create_tries=9, breaker_failures=2, breaker_s=8.0)
    waiting = [pool.ask("a") for _ in range(3)]
    for _ in range(2):
        for box in list(pool.making):
            pool.finish_make(box, RuntimeFault("no image"))
        pool.drain()
    assert all(isinstance(ticket.error, CreationPaused) for ticket in waiting)
    assert "no image" in str(waiting[0].error)
    assert isinstance(pool.ask("a").error, CreationPaused)
    assert pool.ask("b").error is None, "one shelf's failures are not another's"
    pool.tick(10.0)
    tried = [pool.ask("a") for _ in range(3)]
    assert [box.shelf.key for box in pool.making].count("a") == 1
    pool.drain()
    assert tried[0].box is not None
    assert all(ticket.box is not None for ticket in tried)


def test_a_wish_fails_after_its_tries_and_a_wrong_setting_at_once():
    pool = books(create_tries=2, breaker_failures=99)
    ticket = pool.ask("a")
    pool.finish_make(pool.making[0], RuntimeFault("first"))
    assert ticket.error is None
    pool.tick(1.0)
    pool.finish_make(pool.making[0], RuntimeFault("second"))
    assert str(ticket.error) == "second"
    wrong = pool.ask("b")
    pool.finish_make(pool.making[0], UsageError("no such image"))
    assert isinstance(wrong.error, UsageError)


def test_creation_is_paced_after_a_burst():
    pace, begun, now = Pace(10.0, random.Random(1)), [], 0.0
    while now < 10.0:
        if pace.ready_at(now) <= now:
            pace.take(now)
            begun.append(now)
        else:
            now = pace.ready_at(now)
    at_once = sum(moment == 0.0 for moment in begun)
    assert 8 <= at_once <= 14
    assert 95 <= len(begun) - at_once <= 110
    gaps = {round(b - a, 6) for a, b in pairwise(begun) if a}
    assert len(gaps) > 20, "there is no jitter"


def test_pauses_grow_and_end():
    breaker = Breaker(5, 30.0, random.Random(2))
    pauses = []
    for _ in range(5):
        breaker.failure(0.0, "no")
        pauses.append(breaker.retry_at)
    assert pauses == sorted(pauses)
    assert breaker.open(pauses[-1] - 1)
    assert breaker.permits(pauses[-1], 0)
    assert not breaker.permits(pauses[-1], 1)
    breaker.success()
    assert breaker.permits(0.0, 5)
    assert not breaker.tripped
