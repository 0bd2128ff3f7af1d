"""The pool: every slot proven, none handed out twice, callers held back, and one tokenizer under all of it."""

import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import tiny
from rollwright.renderers import Declined, RendererPool, load_engine, renderer_for
from rollwright.renderers.pool import INIT_WORKERS_VARIABLE, init_workers
from rollwright.wire import EngineUnavailable, UsageError, assistant, reply_of, system, tool_result, user
from vocabularies import vocabulary

TALK = (system("Be brief."), user("hi 你好 <|im_end|>"), assistant("the abc"), user("more"))


class Spoiled:
    """A renderer that was poisoned while it was built: it renders something else."""

    def __init__(self, how):
        self._sound = tiny.renderer()
        self._how = how

    def __getattr__(self, name):
        return getattr(self._sound, name)

    def render(self, messages, tools=(), *, prompt=True):
        if self._how == "raises":
            raise RuntimeError("half built")
        spoiled = (*messages[:-1], user("something else")) if self._how == "other" else messages[:1]
        return self._sound.render(spoiled, tools, prompt=prompt)

    def parser(self, tape):
        return self._sound.parser(self._sound.render([user("x")]))


class Deaf(Spoiled):
    """Renders as it should and reads half of what is written."""

    def render(self, messages, tools=(), *, prompt=True):
        return self._sound.render(messages, tools, prompt=prompt)

    def parser(self, tape):
        parser = self._sound.parser(tape)
        feed = parser.feed

        class Half:
            def feed(self, ids):
                return feed(ids[::2])

            def end(self, *, cut=False):
                return parser.end(cut=cut)

        return Half()


# Proven slots.


@pytest.mark.parametrize("bad", [Spoiled("raises"), Spoiled("other"), Spoiled("short"), Deaf("half")])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_bad_slot_is_built_anew_and_never_handed_out(bad, at):
    made = []

    def make():
        made.append(bad if len(made) == at else tiny.renderer())
        return made[-1]

    pool = RendererPool(make, size=4)
    assert pool.stats.rejected == 1
    assert len(made) == 5
    leases = [pool.lease() for _ in range(4)]
    slots = [lease.__enter__() for lease in leases]
    assert bad not in slots
    assert len(set(map(id, slots))) == 4
    for lease in leases:
        lease.__exit__(None, None, None)
    pool.close()


@pytest.mark.parametrize("how", ["raises", "other", "short"])
def test_a_pool_that_cannot_be_proven_is_not_made(how):
    with pytest.raises(UsageError, match="failed its proof 3 times"):
        RendererPool(lambda: Spoiled(how), size=2)


def test_one_bad_builder_among_parallel_ones_is_found(monkeypatch):
    monkeypatch.setenv(INIT_WORKERS_VARIABLE, "4")
    count, lock = [0], threading.Lock()

    def make():
        with lock:
            count[0] += 1
            bad = count[0] in (3, 6)
        return Spoiled("other") if bad else tiny.renderer()

    pool = RendererPool(make, size=8)
    assert pool.stats.rejected == 2
    assert pool.stats.idle == 8
    pool.close()


# How many are built at once.


@pytest.mark.parametrize(
    ("value", "size", "workers"),
    [
        (None, 32, 1), ("", 32, 1), ("1", 32, 1), ("4", 32, 4), ("8", 32, 8), ("9", 32, 8), ("10000", 32, 8),
        ("4", 2, 2), ("4", 1, 1), ("0", 32, 1), ("-3", 32, 1), ("two", 32, 1), ("2.5", 32, 1), (" 3 ", 32, 3),
    ],
)  # fmt: skip
def test_init_workers_are_clamped(monkeypatch, value, size, workers):
    monkeypatch.delenv(INIT_WORKERS_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(INIT_WORKERS_VARIABLE, value)
    assert init_workers(size) == workers


@pytest.mark.parametrize(("value", "at_once"), [("1", 1), ("nonsense", 1), ("3", 3), ("99", 5)])
def test_slots_are_built_by_that_many_threads(monkeypatch, value, at_once):
    monkeypatch.setenv(INIT_WORKERS_VARIABLE, value)
    built = []
    # The first slot is built before the others, in the thread that asked.
    gate = threading.Barrier(min(at_once, 5))

    def make():
        if built and at_once > 1 and len(built) <= at_once:
            built.append(threading.get_ident())
            gate.wait(10)
        else:
            built.append(threading.get_ident())
        return tiny.renderer()

    RendererPool(make, size=6).close()
    assert len(set(built[1:])) == at_once
    if at_once == 1:
        assert set(built) == {threading.get_ident()}


# Backpressure.


async def test_callers_wait_in_line_and_each_gets_a_slot():
    pool, order = tiny.pool(size=1), []
    async with pool.leased():
        waiting = [asyncio.create_task(_note(pool, order, number)) for number in range(5)]
        while pool.stats.waiting < 5:
            await asyncio.sleep(0)
        assert order == []
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2, 3, 4]
    assert pool.stats.leases == 6
    assert repr(pool) == "<RendererPool 1 idle, 0 leased, 0 waiting>"
    pool.close()


async def _note(pool, order, number):
    async with pool.leased():
        order.append(number)


async def test_too_many_callers_are_turned_away():
    pool = RendererPool(tiny.renderer, size=1, max_waiting=1)
    async with pool.leased():
        waiting = asyncio.create_task(_note(pool, [], 0))
        while pool.stats.waiting < 1:
            await asyncio.sleep(0)
        with pytest.raises(EngineUnavailable, match="1 callers wait for the 1 renderers already"):
            async with pool.leased():
                pass
    await waiting
    assert pool.stats.refused == 1
    pool.close()


async def test_a_wait_has_a_deadline():
    pool = RendererPool(tiny.renderer, size=1, wait_timeout_s=0.01)
    async with pool.leased():
        with pytest.raises(EngineUnavailable, match=r"no renderer came free within 0\.01 s"):
            await pool.render(TALK)
    with pool.lease(), pytest.raises(EngineUnavailable, match=r"within 0\.01 s"), pool.lease():
        pass
    assert pool.stats == pool.stats.__class__(1, 1, 0, pool.stats.leases, 0, 0, 0, 2)
    pool.close()


async def test_a_caller_that_leaves_the_line_takes_no_slot_with_it():
    pool = tiny.pool(size=1)
    for _ in range(20):
        async with pool.leased():
            waiting = [asyncio.create_task(_note(pool, [], number)) for number in range(3)]
            while pool.stats.waiting < 3:
                await asyncio.sleep(0)
            waiting[0].cancel()
        # Cancelled in the very moment in which the slot is handed over.
        waiting[1].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert repr(pool) == "<RendererPool 1 idle, 0 leased, 0 waiting>"
    pool.close()


async def test_closing_turns_waiters_away_and_lets_work_end():
    pool = tiny.pool(size=1)
    async with pool.leased():
        waiting = asyncio.create_task(_note(pool, [], 0))
        while pool.stats.waiting < 1:
            await asyncio.sleep(0)
        pool.close()
        with pytest.raises(EngineUnavailable, match="closed"):
            await waiting
    with pytest.raises(EngineUnavailable, match="closed"):
        await pool.render(TALK)
    pool.close()


@pytest.mark.parametrize("settings", [{"size": 0}, {"max_waiting": -1}, {"wait_timeout_s": 0}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(UsageError):
        RendererPool(tiny.renderer, **settings)


# Jobs.


async def test_small_jobs_are_done_at_once_and_large_ones_in_a_thread():
    pool = tiny.pool()
    tape = await pool.render(TALK)
    assert np.array_equal(tape.ids, tiny.renderer().render(TALK).ids)
    assert (pool.stats.inline, pool.stats.threaded) == (1, 0)
    long = (user("the abc " * 5000),)
    tape = await pool.render(long)
    assert np.array_equal(tape.ids, tiny.renderer().render(long).ids)
    assert (pool.stats.inline, pool.stats.threaded) == (1, 1)
    end = pool.renderer.stop_ids[0]
    answer = np.array([*tiny.engine().encode("ok").tolist(), end], np.int32)
    assert reply_of(await pool.parse(tape, answer)).message.text == "ok"
    longer = await pool.extend(tape.sample(answer), (user("it is " * 5000),))
    assert not isinstance(longer, Declined)
    assert (pool.stats.inline, pool.stats.threaded) == (2, 2)
    words = tiny.engine().encode("the abc " * 3000)
    many = np.array([*words.tolist(), end], np.int32)
    assert reply_of(await pool.parse(longer, many)).message.text == "the abc " * 3000
    assert pool.stats.threaded == 3
    pool.close()


async def test_a_cancelled_job_gives_its_slot_back_when_its_thread_is_done():
    running, go_on = threading.Event(), threading.Event()

    class Slow(Spoiled):
        def render(self, messages, tools=(), *, prompt=True):
            if len(messages[0].text) > 10_000:
                running.set()
                go_on.wait(10)
            return self._sound.render(messages, tools, prompt=prompt)

        def parser(self, tape):
            return self._sound.parser(tape)

    pool = RendererPool(lambda: Slow(""), size=1)
    job = asyncio.create_task(pool.render((user("x" * 20_000),)))
    while not running.is_set():
        await asyncio.sleep(0)
    job.cancel()
    await asyncio.sleep(0)
    assert pool.stats.idle == 0, "a thread still renders with it"
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert pool.stats.idle == 1
    pool.close()


# Threads.


@pytest.mark.parametrize("kind", ["tokenizers", "fastokens", "tiktoken"])
def test_eight_threads_beside_a_hostile_caller_get_no_wrong_id(kind):
    """The hostile caller has a tokenizer of the same file, and truncates and pads with it all the while."""
    path = vocabulary("qwen3")
    try:
        engine = load_engine(path, kind=kind)
    except UsageError as error:
        pytest.skip(str(error))
    pool = RendererPool(lambda: renderer_for(engine, model="qwen3"), size=8)
    talks = [(user(f"{number} " + "the quick brown fox 你好 " * (number % 7)),) for number in range(24)]
    expected = [pool.renderer.render(talk).ids.copy() for talk in talks]
    added = (tool_result("c", "result " * 30),)
    answer = np.array([*engine.encode("Fine.").tolist(), pool.renderer.stop_ids[0]], np.int32)
    extended = [pool.renderer.extend(pool.renderer.render(talk).sample(answer), added).ids.copy() for talk in talks]
    over, enough = threading.Event(), threading.Event()

    def hostile():
        own = Tokenizer.from_file(str(path))
        turns = 0
        while not over.is_set():
            own.enable_truncation(max_length=3 + turns % 5)
            own.enable_padding(length=64)
            assert len(own.encode("one two three four five six seven eight nine").ids) == 64
            own.no_truncation()
            own.no_padding()
            turns += 1
            if turns == 50:
                enough.set()

    def work(seat):
        wrong = 0
        for step in range(60):
            at = (seat * 7 + step) % len(talks)
            with pool.lease() as renderer:
                tape = renderer.render(talks[at])
                longer = renderer.extend(tape.sample(answer), added)
            wrong += not np.array_equal(tape.ids, expected[at])
            wrong += not np.array_equal(longer.ids, extended[at])
        return wrong

    caller = threading.Thread(target=hostile)
    caller.start()
    try:
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(work, range(8))) == [0] * 8
        assert enough.wait(30)
    finally:
        over.set()
        caller.join()
    assert pool.stats.idle == 8
    pool.close()


_COLD = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
sys.path.insert(0, {tests!r})
gate = threading.Barrier(8)

def first(_):
    gate.wait()
    from rollwright.renderers import RendererPool, load_engine, renderer_for
    from rollwright.wire import user
    engine = load_engine({path!r}, kind={kind!r})
    pool = RendererPool(lambda: renderer_for(engine, model="qwen3"), size=4)
    with pool.lease() as renderer:
        return id(engine), renderer.render([user("hi 你好")]).ids.tolist()

with ThreadPoolExecutor(8) as threads:
    found = list(threads.map(first, range(8)))
assert len(set(engine for engine, _ in found)) == 1, "more than one engine was built"
print(found[0][1] if all(ids == found[0][1] for _, ids in found) else found)
"""


@pytest.fixture
def small_model(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(tiny.VOCABULARY)
    return tmp_path


def cold_start(path, workers, kind):
    tests = str(Path(tiny.__file__).parent)
    environment = os.environ | {INIT_WORKERS_VARIABLE: workers, "PYTHONPATH": os.pathsep.join(sys.path)}
    code = _COLD.format(tests=tests, path=str(path), kind=kind)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


KINDS = ("tokenizers", "fastokens", "tiktoken")


@pytest.mark.parametrize(("kind", "workers"), [(KINDS[0], "1"), (KINDS[0], "4"), (KINDS[1], "4"), (KINDS[2], "4")])
def test_eight_threads_may_ask_for_the_first_renderer_at_once(small_model, kind, workers):
    if kind != KINDS[0]:
        pytest.importorskip(kind)
    expected = str(tiny.renderer().render([user("hi 你好")]).ids.tolist())
    assert cold_start(small_model, workers, kind) == expected


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_cold_starts_of_a_real_tokenizer_never_fail(kind):
    if kind != KINDS[0]:
        pytest.importorskip(kind)
    path = vocabulary("qwen3")
    expected = str(renderer_for(load_engine(path), model="qwen3").render([user("hi 你好")]).ids.tolist())
    for attempt in range(20):
        assert cold_start(path, "8" if attempt % 2 else "1", kind) == expected
