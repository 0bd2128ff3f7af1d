"""What is shown while a run goes, and told when it ends."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rollwright.cli.books import Books, one_line
from rollwright.cli.report import Result, told
from rollwright.cli.table import Glance, Panel, drawn, panel, shown, span
from rollwright.cli.talk import Talk
from rollwright.wire import CallRecord, Failure, Layer, Score, Stop, Trace, Usage


def finished(task: str, reward: float = 1.0, attempt: int = 0, tokens: int = 10) -> Trace:
    call = CallRecord(prompt=0, reply=1, usage=Usage(5, tokens))
    return Trace(task_id=task, attempt=attempt, calls=(call,), reward=reward, scores={"correct": Score(reward, 1.0)})


def failed(task: str, message: str, layer: Layer = Layer.ENGINE) -> Trace:
    return Trace(task_id=task, attempt=0, stop=Stop.FAILED, failure=Failure(layer, "EngineUnavailable", message))


def seen(**changes: object) -> Panel:
    base = {
        "title": "sums with [bold]big[/bold]",
        "planned": 40,
        "finished": 10,
        "in_flight": 8,
        "failures": {"engine": 2, "task": 1},
        "reward": 0.75,
        "rollouts_per_s": 3.0,
        "tokens_per_s": 1234.0,
        "elapsed_s": 75.0,
        "left_s": 9.0,
        "lag_p99_s": 0.0123,
        "draining": False,
    }
    return panel(Glance(**{**base, **changes}))  # type: ignore[arg-type]


def test_the_line_and_the_table_show_the_same_numbers() -> None:
    screen = io.StringIO()
    Console(file=screen, width=100).print(drawn(seen()))
    words = ["13 of 40", "0.750", "3 (engine 2, task 1)", "3.0 rollouts/s, 1,234 tokens/s", "1 min 15 s", "12.3 ms"]
    for word in words:
        assert word in seen().line
        assert word in screen.getvalue()
    assert "[bold]big[/bold]" in screen.getvalue()


def test_what_is_not_known_yet_is_not_invented() -> None:
    shown_line = seen(reward=None, left_s=None, failures={}, finished=0).line
    assert "reward -" in shown_line
    assert "? left" in shown_line
    assert "failed 0" in shown_line


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.04, "0.0 s"), (59.9, "59.9 s"), (61, "1 min 01 s"), (7384, "2 h 03 min")]
)
def test_spans_are_words(seconds: float, words: str) -> None:
    assert span(seconds) == words


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rates_are_those_of_late() -> None:
    clock = Clock()
    books = Books(1000, clock=clock)
    books.start()
    for n in range(100):
        clock.now += 0.1
        books.add(finished(f"slow-{n}"))
    rollouts, tokens = books.rates()
    assert rollouts == pytest.approx(10, rel=0.05)
    assert tokens == pytest.approx(100, rel=0.05)
    for n in range(4000):
        clock.now += 0.01
        books.add(finished(f"fast-{n}"))
    assert books.rates()[0] == pytest.approx(100, rel=0.05)
    clock.now += 600
    assert books.rates()[0] < 5


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["ok", "down", "odd"])), max_size=40))
def test_a_failure_counts_until_its_rollout_is_done_again(events: list[tuple[str, str]]) -> None:
    books, done, broken = Books(6), set[str](), dict[str, str]()
    for task, outcome in events:
        if task in done:
            continue
        if outcome == "ok":
            books.add(finished(task))
            done.add(task)
            broken.pop(task, None)
        else:
            books.add(failed(task, outcome))
            broken[task] = outcome
    assert books.finished == len(done)
    assert books.failed == len(broken)
    assert sum(count for _, _, count in books.common_failures()) == len(broken)


def test_kept_rollouts_count_in_the_result_and_not_in_the_rate() -> None:
    books = Books(4)
    books.keep([finished("a", 0.0), finished("b")], [failed("c", "was down")])
    assert (books.kept, books.finished, books.failed, books.done_now) == (2, 2, 1, 0)
    books.add(finished("c"))
    assert (books.finished, books.failed, books.done_now) == (3, 0, 1)
    assert books.summary().reward_mean == pytest.approx(2 / 3)


def test_the_report_says_what_failed_and_what_to_do() -> None:
    books = Books(4)
    for trace in (finished("a"), finished("b", 0.0), failed("c", "no\n  answer"), failed("d", "no answer")):
        books.add(trace)
    words = told(Result("sums", "big", "runs/x", False, 0, books.summary(2.0)), books)
    assert "sums with big: 2 of 4 rollouts" in words
    assert "reward      0.500 (95% interval 0.0" in words
    assert "failed      2 of 4: engine 2" in words
    assert "2x engine: no answer" in words
    assert str(Path("runs/x/traces.jsonl")) in words
    assert "--resume -o runs/x" in words


def test_a_run_without_results_says_so() -> None:
    books = Books(1)
    books.add(failed("a", "down"))
    assert "no rollout finished" in told(Result("sums", "big", "x", False, 0, books.summary()), books)


@given(st.text())
def test_a_message_is_one_short_line(text: str) -> None:
    shortened = one_line(text)
    assert len(shortened) <= 160
    assert len(shortened.splitlines()) <= 1


@pytest.mark.parametrize("live", [True, False])
async def test_the_last_look_is_always_shown(live: bool, capsys: pytest.CaptureFixture[str]) -> None:
    talk, looks = Talk(), iter(range(1000))

    def look() -> Panel:
        return seen(finished=next(looks), failures={}, draining=True)

    async with shown(look, talk, live=live):
        await asyncio.sleep(0)
        talk.say("Finishing 8 rollouts.")
    said = capsys.readouterr().err
    assert "(finishing)" in said
    assert "Finishing 8 rollouts." in said
    assert talk.above is None
