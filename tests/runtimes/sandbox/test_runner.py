"""The runner does what steps say, by its own code and by a fork alike, and tells what was refused."""

import os
import select
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollwright.runtimes.sandbox.warden import runner
from rollwright.runtimes.sandbox.warden.errands import bury
from rollwright.runtimes.sandbox.warden.furnish import tell
from rollwright.runtimes.sandbox.warden.loop import hear
from rollwright.runtimes.sandbox.warden.runner import BASE, MOST, Work
from rollwright.runtimes.sandbox.warden.steps import KNOWN, SKIP, Blank, Buffer, Label, Steps

PATIENCE_S = 30
WAYS = [pytest.param(False, id="fork")] + ([pytest.param(True, id="code")] if runner.NATIVE else [])

pytestmark = pytest.mark.skipif(not KNOWN, reason="the calls of this processor have no numbers here")


def answer_of(work, fds=(), texts=()):
    """What the work told: words and descriptors; None where it ended without a word."""
    session, link = work.begin(fds, texts)
    with link:
        assert select.select([link], [], [], PATIENCE_S)[0], "the runner says nothing"
        heard = hear(link)
    bury(session)
    return heard


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    monkeypatch.setattr(runner, "NATIVE", request.param)


def done(steps):
    tell(steps, [])
    steps.call("exit_group", 0)
    return Work(steps, forks=True)


def test_the_listing_is_the_program():
    if not runner.NATIVE:
        pytest.skip("there is no listing for this processor")
    assert len(runner.code()) == 225
    assert runner.program().endswith(runner.code())


def test_calls_are_made_in_order_and_answers_are_arguments(way, tmp_path):
    steps = Steps()
    place = steps.call("openat", -100, str(tmp_path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    steps.call("mkdirat", place, "inner", 0o700)
    file = steps.call("openat", place, "inner/file", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    steps.call("write", file, b"written", 7)
    assert answer_of(done(steps)).word == b"done"
    assert (tmp_path / "inner" / "file").read_bytes() == b"written"


def test_a_refusal_is_told_and_ends_it(way, tmp_path):
    steps = Steps()
    steps.call("mkdirat", -100, str(tmp_path / "made"), 0o700)
    steps.call("mkdirat", -100, str(tmp_path / "no" / "way"), 0o700)
    steps.call("mkdirat", -100, str(tmp_path / "never"), 0o700)
    work = done(steps)
    error = work.steps.why(answer_of(work).word, BASE)
    assert isinstance(error, FileNotFoundError)
    assert str(tmp_path / "no" / "way") in str(error)
    assert os.listdir(tmp_path) == ["made"]


def test_a_refusal_may_lead_on_and_so_may_a_fork(way, tmp_path):
    steps, parent, refused = Steps(), Label(), Label()
    steps.call("mkdirat", -100, str(tmp_path / "no" / "way"), 0o700, refused=SKIP)
    steps.call("mkdirat", -100, str(tmp_path / "no" / "way"), 0o700, refused=refused)
    steps.call("mkdirat", -100, str(tmp_path / "never"), 0o700)
    steps.mark(refused)
    steps.call("clone", 17 | 0x8000, 0, 0, 0, 0, positive=parent)
    steps.call("mkdirat", -100, str(tmp_path / "child"), 0o700)
    tell(steps, [])
    steps.mark(parent)
    steps.call("exit_group", 0)
    assert answer_of(Work(steps, forks=True)).word == b"done"
    assert os.listdir(tmp_path) == ["child"]


def test_descriptors_and_who_sent_them_arrive(way, tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    steps = Steps()
    opened = [steps.call("openat", -100, str(tmp_path / "file"), os.O_RDONLY | os.O_CLOEXEC) for _ in range(2)]
    tell(steps, opened)
    steps.call("read", 0, Buffer(bytes(8)), 8)
    steps.call("exit_group", 0)
    session, link = Work(steps, forks=True).begin()
    heard = hear(link)
    assert heard.pid == session
    for fd in heard.fds:
        assert os.read(fd, 100) == b"content"
        os.close(fd)
    link.close()  # It waits for this, and ends.
    bury(session)
    assert len(heard.fds) == 2


def test_descriptors_and_texts_are_given_at_the_beginning(tmp_path):
    if not runner.NATIVE:
        pytest.skip("a fork is given no texts")
    path, argv, env = Blank(), Blank(), Blank()
    steps = Steps()
    steps.call("dup3", 3, 1, 0)
    steps.call("execve", path, argv, env)
    work = Work(steps, [path, argv, env])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for word in (b"one", b"two"):
            texts = [b"/bin/sh", [b"sh", b"-c", b'echo "$0 $WORD"', word], [b"WORD=" + word]]
            session, link = work.begin([theirs.fileno()], texts)
            with link:
                assert ours.recv(100) == word + b" " + word + b"\n"
            bury(session)
        with pytest.raises(OSError, match="too many"):
            work.begin([theirs.fileno()], [b"x" * MOST, [], []])


def test_a_runner_that_cannot_be_run_is_done_without_where_that_is_safe(monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "_file", lambda: os.devnull)
    steps = Steps()
    steps.call("mkdirat", -100, str(tmp_path / "made"), 0o700)
    assert answer_of(done(steps)).word == b"done"
    assert os.listdir(tmp_path) == ["made"]
    with pytest.raises(OSError, match=r"Permission denied|no runner"):
        Work(steps).begin()


names = st.sampled_from(["a", "b", "a/c", "b/c", "a/c/d"])
calls = st.one_of(
    st.tuples(st.just("mkdirat"), names, st.just(0o700)),
    st.tuples(st.just("mknodat"), names, st.just(0o100600)),
    st.tuples(st.just("unlinkat"), names, st.sampled_from([0, 0x200])),
)


@pytest.mark.skipif(not runner.NATIVE, reason="there is one way only on this processor")
@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(calls, st.booleans()), max_size=12))
def test_both_ways_do_and_tell_the_same(tmp_path_factory, made):
    seen = []
    native = runner.NATIVE
    for runner.NATIVE in (True, False):
        top = tmp_path_factory.mktemp("top")
        steps = Steps()
        place = steps.call("openat", -100, str(top), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for (name, path, mode), matters in made:
            steps.call(name, place, path, mode, refused=None if matters else SKIP)
        heard = answer_of(done(steps))
        tree = sorted(os.path.relpath(os.path.join(where, one), top) for where, a, b in os.walk(top) for one in a + b)
        seen.append((heard.word, tree))
    runner.NATIVE = native
    assert seen[0] == seen[1]
