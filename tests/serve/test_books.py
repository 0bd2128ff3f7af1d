"""The broker's books: whatever happens in whatever order, a request ends once, and nothing is delivered twice."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rollwright.serve.books import Books
from rollwright.serve.ledger import Bounds
from rollwright.serve.protocol import Done, Drop, Failed, Part, Run, Submit, Trouble, Voided

CLIENTS = [b"c0", b"c1"]
UNREAD_BYTES = 40
BUDGET_BYTES = 60
TRACE = b"a trace of bytes"


def submit(number, rollouts=1, *, timeout_s=100.0, **more):
    return Submit(number, rollouts, f"task {number}", timeout_s, "broker", **more)


class AnyOrder(RuleBasedStateMachine):
    """A model of what clients saw and workers hold, beside the books."""

    def __init__(self):
        super().__init__()
        self.books = Books(Bounds(window=40, queue=60, redispatches=2, reply_bytes=UNREAD_BYTES))
        self.sent = Counter()
        self.read = Counter()
        self.taken = Counter()
        self.crashed = set()
        """Requests that a worker died with: what is begun is not stopped."""
        for client in CLIENTS:
            self.books.client_came(client, "", BUDGET_BYTES)
        self.now = 0.0
        self.number = 0
        self.workers = 0
        self.seats = {}
        self.wanted = {}
        self.parts = {}
        self.ended = Counter()

    def deliver(self, letters):
        for letter in letters:
            if letter.to_worker:
                self._to_worker(letter)
            else:
                self._to_client(letter)

    def _to_worker(self, letter):
        holding = self.seats.get(letter.to)
        assert holding is not None, "a letter went to a worker that is dead"
        if isinstance(letter.envelope, Run):
            assert letter.envelope.ticket not in holding
            client = letter.frames[0][0]
            if letter.frames[0] not in self.crashed:
                assert self.sent[client] - self.read[client] <= UNREAD_BYTES, "begun for a client that does not read"
                assert self.sent[client] - self.taken[client] <= BUDGET_BYTES, "begun for one that has not taken"
            holding[letter.envelope.ticket] = (letter.frames[0], set(letter.envelope.skip))
        else:
            assert isinstance(letter.envelope, Drop)
            holding.pop(letter.envelope.ticket, None)

    def _to_client(self, letter):
        key = letter.to, letter.envelope.request
        assert key in self.wanted, "an answer came to a request that nobody waits for"
        self.sent[letter.to] += sum(len(frame) for frame in letter.frames)
        if isinstance(letter.envelope, Part):
            assert letter.envelope.position not in self.parts[key], "a rollout was delivered twice"
            self.parts[key].add(letter.envelope.position)
            if letter.envelope.last:
                assert self.parts[key] == set(range(self.wanted.pop(key).rollouts)), "done, but not all of it"
                self.ended[key] += 1
        elif isinstance(letter.envelope, Voided):
            assert self.wanted[key].together
            self.parts[key].clear()
        else:
            asked = self.wanted.pop(key)
            if isinstance(letter.envelope, Done):
                assert self.parts[key] == set(range(asked.rollouts)), "done, but not all of it"
            self.ended[key] += 1

    @rule(client=st.sampled_from(CLIENTS), rollouts=st.integers(1, 12), together=st.booleans(), retry=st.booleans())
    def ask(self, client, rollouts, together, retry):
        self.number += 1
        asked = submit(self.number, rollouts, timeout_s=20.0, together=together, retry=retry)
        self.wanted[client, self.number] = asked
        self.parts[client, self.number] = set()
        self.deliver(self.books.submit(client, asked, [(client, self.number)], self.now))

    @precondition(lambda self: len(self.seats) < 4)
    @rule(capacity=st.integers(1, 10))
    def arrive(self, capacity):
        self.workers += 1
        peer = b"w%d" % self.workers
        self.seats[peer] = {}
        self.deliver(self.books.seat(peer, capacity, self.now))

    @precondition(lambda self: self.seats)
    @rule(data=st.data())
    def die(self, data):
        peer = data.draw(st.sampled_from(sorted(self.seats)))
        self.crashed.update(key for key, _ in self.seats.pop(peer).values())
        self.deliver(self.books.worker_lost(peer, "it died", self.now))

    @precondition(lambda self: any(self.seats.values()))
    @rule(data=st.data(), fails=st.booleans())
    def work(self, data, fails):
        peer = data.draw(st.sampled_from(sorted(peer for peer, held in self.seats.items() if held)))
        ticket = data.draw(st.sampled_from(sorted(self.seats[peer])))
        key, skip = self.seats[peer][ticket]
        missing = [position for position in range(self.wanted[key].rollouts) if position not in skip]
        if missing:
            skip.add(missing[0])
            last = len(missing) == 1 and not fails
            if last:
                del self.seats[peer][ticket]
            self.deliver(self.books.result(peer, Part(ticket, missing[0], last), [TRACE], self.now))
        else:
            del self.seats[peer][ticket]
            last = Failed(ticket, Trouble.BROKE, "no") if fails else Done(ticket)
            self.deliver(self.books.result(peer, last, (), self.now))

    @precondition(lambda self: self.seats)
    @rule(data=st.data(), ticket=st.integers(0, 50))
    def a_late_answer_reaches_nobody(self, data, ticket):
        peer = data.draw(st.sampled_from(sorted(self.seats)))
        if ticket not in self.seats[peer]:
            assert self.books.result(peer, Done(ticket), (), self.now) == []
            assert self.books.result(b"stranger", Part(ticket, 0), (), self.now) == []

    @rule(client=st.sampled_from(CLIENTS), data=st.data())
    def cancel(self, client, data):
        numbers = [number for who, number in self.wanted if who == client]
        if numbers:
            self.deliver(self.books.cancel(client, data.draw(st.sampled_from(numbers))))

    @rule(client=st.sampled_from(CLIENTS))
    def leave(self, client):
        for key in [key for key in self.wanted if key[0] == client]:
            del self.wanted[key]
            self.ended[key] += 1
        self.deliver(self.books.client_gone(client))
        del self.sent[client], self.read[client], self.taken[client]
        self.books.client_came(client, "", BUDGET_BYTES)

    @rule(client=st.sampled_from(CLIENTS), share=st.sampled_from([0.5, 1.0, 2.0]), taken=st.floats(0.0, 1.0))
    def catch_up(self, client, share, taken):
        """The client tells what it has read, and perhaps more than it was sent; its caller has taken some of that."""
        read = int(self.sent[client] * share)
        took = int(read * taken)
        self.read[client] = min(max(read, self.read[client]), self.sent[client])
        self.taken[client] = min(max(took, self.taken[client]), self.sent[client])
        self.deliver(self.books.has_taken(client, read, took, self.now))

    @precondition(lambda self: self.seats)
    @rule(data=st.data())
    def stand_still(self, data):
        """What a worker has not begun is taken back from it; what it has, and what may run only once, stays."""
        peer = data.draw(st.sampled_from(sorted(self.seats)))
        begun = data.draw(st.integers(0, max(self.seats[peer], default=0)))
        stays = {key for ticket, (key, _) in self.seats[peer].items() if ticket <= begun or not self.wanted[key].retry}
        self.deliver(self.books.open_seat(peer, False, self.now))
        self.deliver(self.books.take_back(peer, begun, self.now))
        assert {key for key, _ in self.seats[peer].values()} == stays

    @rule(seconds=st.floats(0.0, 15.0))
    def wait(self, seconds):
        self.now += seconds
        self.deliver(self.books.expire(self.now))

    @rule(data=st.data(), open=st.booleans())
    def close_or_open(self, data, open):
        if self.seats:
            peer = data.draw(st.sampled_from(sorted(self.seats)))
            self.deliver(self.books.open_seat(peer, open, self.now))

    @invariant()
    def every_request_is_in_one_place(self):
        assert max(self.ended.values(), default=1) == 1, "a request ended twice"
        held = [key for holding in self.seats.values() for key, _ in holding.values()]
        assert len(held) == len(set(held)), "a request is held by two workers"
        assert set(held) <= set(self.wanted)
        status = self.books.status()
        assert status["requests"] == len(self.wanted)
        assert status["queued_requests"] == len(self.wanted) - len(held)

    @invariant()
    def loads_add_up(self):
        for peer, holding in self.seats.items():
            missing = [self.wanted[key].rollouts - len(self.parts[key]) for key, _ in holding.values()]
            assert self.books.load_of(peer) == sum(missing)

    def teardown(self):
        self.deliver(self.books.fail_all("the test is over"))
        assert not self.wanted
        status = self.books.status()
        assert status["requests"] == status["queued_rollouts"] == status["request_bytes"] == 0
        assert status["unread_bytes"] == self.sent.total() - self.read.total()
        assert status["untaken_bytes"] == self.sent.total() - self.taken.total()


AnyOrder.TestCase.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)
TestAnyOrder = AnyOrder.TestCase


def test_a_request_that_kills_its_workers_is_named_and_given_up():
    books = Books(Bounds(redispatches=2))
    books.submit(b"c", submit(7), ["job"], 0.0)
    for number in range(3):
        peer = b"w%d" % number
        (run,) = books.seat(peer, 4, 0.0)
        assert isinstance(run.envelope, Run)
        last = books.worker_lost(peer, f"worker {number} fell", 0.0)
    (answer,) = last
    assert answer.envelope == Failed(
        7, Trouble.POISON, "task 7 was held by 3 workers when they died; the last: worker 2 fell"
    )
    assert books.counts["redispatched"] == 2


def test_the_next_attempt_runs_only_what_did_not_arrive():
    books = Books()
    books.submit(b"c", submit(1, 3), ["job"], 0.0)
    (run,) = books.seat(b"w1", 8, 0.0)
    books.result(b"w1", Part(run.envelope.ticket, 1), ["trace"], 0.0)
    books.worker_lost(b"w1", "gone", 0.0)
    (again,) = books.seat(b"w2", 8, 0.0)
    assert again.envelope.skip == (1,)
    assert again.envelope.ticket != run.envelope.ticket
    assert again.frames == ["job"]


def test_a_group_that_is_scored_together_starts_over():
    books = Books()
    books.submit(b"c", submit(1, 2, together=True), ["job"], 0.0)
    (run,) = books.seat(b"w1", 8, 0.0)
    books.result(b"w1", Part(run.envelope.ticket, 0), ["trace"], 0.0)
    (voided,) = books.worker_lost(b"w1", "gone", 0.0)
    assert voided.envelope == Voided(1)
    (again,) = books.seat(b"w2", 8, 0.0)
    assert again.envelope.skip == ()


def test_work_goes_to_the_least_loaded():
    books = Books()
    books.seat(b"w1", 10, 0.0)
    books.seat(b"w2", 10, 0.0)
    (first,) = books.submit(b"c", submit(1, 3), [], 0.0)
    (second,) = books.submit(b"c", submit(2), [], 0.0)
    (third,) = books.submit(b"c", submit(3), [], 0.0)
    assert second.to == third.to != first.to


def test_a_group_larger_than_a_worker_runs_alone_rather_than_never():
    books = Books()
    books.seat(b"w", 4, 0.0)
    (small,) = books.submit(b"c", submit(1), [], 0.0)
    assert books.submit(b"c", submit(2, 9), [], 0.0) == []
    letters = books.result(b"w", Part(small.envelope.ticket, 0), (), 0.0)
    letters += books.result(b"w", Done(small.envelope.ticket), (), 0.0)
    assert [type(letter.envelope) for letter in letters] == [Part, Done, Run]


def test_a_full_window_and_a_full_queue_say_so():
    books = Books(Bounds(window=3, queue=4))
    assert books.submit(b"a", submit(1, 3), [], 0.0) == []
    (full,) = books.submit(b"a", submit(2), [], 0.0)
    (crowded,) = books.submit(b"b", submit(1, 2), [], 0.0)
    assert full.envelope.trouble is crowded.envelope.trouble is Trouble.OVERLOADED
    assert books.counts["refused"] == 2


def test_nothing_is_begun_for_a_client_that_does_not_read_and_others_go_on():
    books = Books(Bounds(reply_bytes=10))
    books.seat(b"w", 1, 0.0)
    (run,) = books.submit(b"slow", submit(1), [], 0.0)
    assert books.submit(b"slow", submit(2), [], 0.0) == []
    assert books.submit(b"other", submit(1), [], 0.0) == []
    answer, other = books.result(b"w", Part(run.envelope.ticket, 0, True), [bytes(11)], 0.0)
    assert (answer.to, type(other.envelope), books.status()["slow_clients"]) == (b"slow", Run, 1)
    assert books.submit(b"slow", submit(3), [], 0.0) == []
    assert len(books.result(b"w", Part(other.envelope.ticket, 0, True), [b""], 0.0)) == 1
    assert books.has_taken(b"slow", 5, 0, 0.0) == []
    (second,) = books.has_taken(b"slow", 11, 0, 0.0)
    assert isinstance(second.envelope, Run)
    assert (books.status()["unread_bytes"], books.status()["slow_clients"]) == (0, 0)


def test_bytes_have_a_budget_that_is_given_back():
    books = Books(Bounds(queue_bytes=10))
    books.submit(b"a", submit(1), [b"123456"], 0.0)
    (full,) = books.submit(b"b", submit(1), [b"12345"], 0.0)
    assert (full.envelope.trouble, books.status()["request_bytes"]) == (Trouble.OVERLOADED, 6)
    books.cancel(b"a", 1)
    assert books.submit(b"b", submit(2), [b"1234567890"], 0.0) == []
    books.client_gone(b"b")
    assert books.status()["request_bytes"] == 0


def test_what_ended_keeps_nothing_in_memory_until_its_deadline():
    books = Books()
    books.seat(b"w", 1, 0.0)
    for number in range(2000):
        (run,) = books.submit(b"c", submit(number, timeout_s=1e6), ["a large job"], 0.0)
        books.result(b"w", Part(run.envelope.ticket, 0), (), 0.0)
        books.result(b"w", Done(run.envelope.ticket), (), 0.0)
        books.expire(1.0)
    assert len(books._deadlines) < 200


def test_a_request_on_its_way_to_a_worker_that_stands_still_goes_to_a_neighbour():
    books = Books()
    books.seat(b"w1", 4, 0.0)
    (begun,) = books.submit(b"c", submit(1), ["a"], 0.0)
    (coming,) = books.submit(b"c", submit(2), ["b"], 0.0)
    (once,) = books.submit(b"c", submit(3, retry=False), ["c"], 0.0)
    assert books.seat(b"w2", 4, 0.0) == books.open_seat(b"w1", False, 0.0) == []
    drop, again = books.take_back(b"w1", begun.envelope.ticket, 0.0)
    assert (drop.to, drop.envelope) == (b"w1", Drop(coming.envelope.ticket))
    assert (again.to, again.frames) == (b"w2", ["b"])
    assert again.envelope.ticket > once.envelope.ticket
    assert books.result(b"w1", Part(coming.envelope.ticket, 0, True), ["late"], 0.0) == []
    (answer,) = books.result(b"w2", Part(again.envelope.ticket, 0, True), ["trace"], 0.0)
    assert answer.envelope == Part(2, 0, True)
    assert books.counts["late"] == books.counts["taken_back"] == 1
    assert (books.load_of(b"w1"), books.load_of(b"w2")) == (2, 0)


@given(
    st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 200),
    st.integers(1, 8),
    st.randoms(use_true_random=False),
)
def test_callers_that_take_only_whole_groups_always_get_them(groups, budget, capacity, chance):
    """However small the budget: parts of unfinished groups are not taken, and must not keep the rest from coming."""
    books = Books(Bounds(redispatches=99))
    books.client_came(b"c", "", budget)
    parts, done, taken, sent = Counter(), set(), 0, 0
    running, workers = [], 1
    letters = books.seat(b"w0", capacity, 0.0)
    for number, (rollouts, together) in enumerate(groups):
        letters += books.submit(b"c", submit(number, rollouts, together=together), [(number,)], 0.0)
    for _ in range(2000):
        for letter in letters:
            if isinstance(letter.envelope, Run):
                (number,) = letter.frames[0]
                missing = [p for p in range(groups[number][0]) if p not in letter.envelope.skip]
                running.append([letter.to, letter.envelope.ticket, missing])
            elif isinstance(letter.envelope, Voided):
                taken += parts.pop(letter.envelope.request) * len(TRACE)
            elif isinstance(letter.envelope, Part):
                sent += len(TRACE)
                parts[letter.envelope.request] += 1
                if letter.envelope.last:
                    done.add(letter.envelope.request)
                    taken += parts.pop(letter.envelope.request) * len(TRACE)
        if not running:
            letters = books.has_taken(b"c", sent, taken, 0.0)
            if not letters:
                break
            continue
        if chance.random() < 0.1 and workers < 20:
            dying = f"w{workers - 1}".encode()
            workers += 1
            running = [work for work in running if work[0] != dying]
            letters = books.worker_lost(dying, "it died", 0.0)
            letters += books.seat(f"w{workers - 1}".encode(), capacity, 0.0)
            continue
        work = chance.choice(running)
        position = work[2].pop(0)
        if not work[2]:
            running.remove(work)
        letters = books.result(work[0], Part(work[1], position, not work[2]), [TRACE], 0.0)
    assert done == set(range(len(groups)))
