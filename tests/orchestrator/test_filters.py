"""Filters: each catches what it says and nothing else; monitors only count; the user's own are at a border."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.call_trees import chat
from rollwright.orchestrator.drafts import samples_of
from rollwright.orchestrator.filters import (
    CustomFilter,
    FilterConfig,
    Gibberish,
    Length,
    Mode,
    Repetition,
    ZeroAdvantage,
    answers_of,
    lowest_mean,
    make_filters,
)
from rollwright.orchestrator.repeats import repeated_share
from rollwright.orchestrator.samples import Sample
from rollwright.wire import CallRecord, Finish, RollwrightError, TokenSegment, Trace, UsageError
from rollwright.wire.arrays import column


def answered(*answers: list[int], logprobs: list[float] | None = None) -> Trace:
    """A chat whose turns have a prompt of two tokens and these answers."""
    records = []
    for turn, answer in enumerate(answers):
        said = logprobs if logprobs is not None else [-0.5] * len(answer)
        tape = TokenSegment(
            turn - 1,
            column([1, 2, *answer], "i4"),
            column([False, False, *[True] * len(answer)], "b1"),
            column([0.0, 0.0, *said], "f4"),
        )
        records.append(CallRecord(prompt=0, reply=turn, tokens=tape))
    return Trace(task_id="t", attempt=0, calls=tuple(records))


def flags(config: FilterConfig, trace: Trace) -> tuple[str, ...]:
    return make_filters([config]).rollout.flags(samples_of(trace), trace)


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 8))
def test_the_share_of_repeated_runs_equals_counting(ids, window):
    runs = [tuple(ids[start : start + window]) for start in range(len(ids) - window + 1)]
    expected = 1 - len(set(runs)) / len(runs) if len(runs) > 1 else 0.0
    assert repeated_share(column(ids, "i4"), window) == pytest.approx(expected)


def test_runs_that_differ_in_a_single_bit_differ():
    """Ids that a weak hash takes for one another: powers of two, negative ones, neighbours, reversed runs."""
    ids = [2**bit for bit in range(31)] + list(range(1000)) + [-(2**31), -1] + list(range(1000, 0, -1))
    runs = {tuple(ids[start : start + 2]) for start in range(len(ids) - 1)}
    assert repeated_share(column(ids, "i4"), 2) == pytest.approx(1 - len(runs) / (len(ids) - 1))


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_the_answers_of_a_sample_are_its_stretches(mask):
    numbers = column(range(len(mask)), "i4")
    spans = column([len(mask)], "i8")
    sample = Sample(
        task_id="t",
        attempt=0,
        branch=0,
        reward=0.0,
        ids=numbers,
        mask=column(mask, "b1"),
        logprobs=column(numbers, "f4"),
        span_lengths=spans,
        span_versions=spans,
    )
    stretches = "".join("x" if said else " " for said in mask).split()
    assert [len(answer) for answer in answers_of(sample)] == list(map(len, stretches))
    said = [position for answer in answers_of(sample) for position in answer.tolist()]
    assert said == [position for position, one in enumerate(mask) if one]


def test_an_answer_that_goes_in_circles_is_caught():
    circle = [*range(40)] * 10
    assert flags(Repetition(), answered(circle)) == ("repetition",)
    assert flags(Repetition(), answered([*range(400)])) == ()
    assert flags(Repetition(), answered(circle[:200])) == ()
    assert flags(Repetition(min_tokens=100), answered(circle[:200])) == ("repetition",)
    assert flags(Repetition(), answered([*range(300)], circle)) == ("repetition",)


def test_an_agent_that_calls_alike_every_turn_is_not_going_in_circles():
    assert flags(Repetition(), answered(*[[*range(300)]] * 5)) == ()


@given(st.lists(st.floats(-20, 0, width=32), max_size=50), st.integers(1, 10))
def test_the_lowest_mean_equals_the_naive_one(values, window):
    means = [np.mean(values[start : start + window]) for start in range(len(values) - window + 1)]
    assert lowest_mean(column(values, "f4"), window) == pytest.approx(min(means, default=0.0), abs=1e-4)


def test_a_stretch_of_noise_is_caught_and_a_surprise_is_not():
    calm, noise = [-0.4] * 500, [-11.0] * 64
    assert flags(Gibberish(), answered([7] * 1064, logprobs=calm + noise + calm)) == ("gibberish",)
    assert flags(Gibberish(), answered([7] * 1010, logprobs=calm + noise[:10] + calm)) == ()
    assert flags(Gibberish(), answered([7] * 10, logprobs=noise[:10])) == ()
    assert flags(Gibberish(window=10), answered([7] * 10, logprobs=noise[:10])) == ("gibberish",)


def test_prompts_are_not_what_the_model_said():
    trace = chat(3, new=400, answer=1)
    assert flags(Gibberish(window=2, min_logprob=-0.6), trace) == ()
    assert flags(Gibberish(window=2, min_logprob=-0.4), trace) == ("gibberish",)


@pytest.mark.parametrize(
    ("config", "caught"),
    [
        (Length(), False),
        (Length(max_sample_tokens=10), False),
        (Length(max_sample_tokens=9), True),
        (Length(max_sampled_tokens=4), False),
        (Length(max_sampled_tokens=3), True),
        (Length(min_sampled_tokens=4), False),
        (Length(min_sampled_tokens=5), True),
        (Length(truncated=True), False),
    ],
)
def test_length_has_bounds_on_both_sides(config, caught):
    assert bool(flags(config, chat(2, new=3, answer=2))) is caught


def test_an_answer_that_was_cut_off_is_caught_when_asked():
    trace = chat(2)
    cut = msgspec.structs.replace(trace.calls[0], finish=Finish.LENGTH)
    trace = msgspec.structs.replace(trace, calls=(cut, trace.calls[1]))
    assert flags(Length(truncated=True), trace) == ("length",)
    assert flags(Length(), trace) == ()


def test_zero_advantage_catches_those_who_finished():
    filters = make_filters([ZeroAdvantage(mode=Mode.ENFORCE), ZeroAdvantage(name="idle")])
    found = filters.group.flags(np.array([0.0, 0.5, 0.0]), np.array([True, True, False]))
    assert found == [("zero_advantage", "idle"), (), ()]
    assert filters.enforced == {"zero_advantage"}
    assert filters.names == ("zero_advantage", "idle")
    assert make_filters().group.flags(np.zeros(2), np.ones(2, bool)) == [(), ()]
    assert len(make_filters().rollout) == 0


def long_prompt(samples, trace, tokens=3):
    return len(samples[0].ids) > tokens


def broken(samples, trace):
    raise ZeroDivisionError("oh")


class Attempts:
    def __init__(self, odd: bool) -> None:
        self.odd = odd

    def __call__(self, samples, trace) -> bool:
        return trace.attempt % 2 == self.odd


def test_an_own_filter_is_a_function_or_a_class():
    own = f"{__name__}:long_prompt"
    assert flags(CustomFilter(path=own), chat()) == ("long_prompt",)
    assert flags(CustomFilter(path=own, name="mine", options={"tokens": 5}), chat()) == ()
    attempts = CustomFilter(path=f"{__name__}:Attempts", options={"odd": True})
    assert flags(attempts, chat(attempt=1)) == ("Attempts",)
    assert flags(attempts, chat(attempt=2)) == ()


def test_an_own_filter_that_is_wrong_is_named():
    with pytest.raises(RollwrightError, match=r"broken' raised ZeroDivisionError: oh"):
        flags(CustomFilter(path=f"{__name__}:broken"), chat())
    with pytest.raises(UsageError, match="could not be made"):
        make_filters([CustomFilter(path=f"{__name__}:Attempts", options={"even": True})])


def test_names_are_said_once_and_those_of_dispatch_are_taken():
    with pytest.raises(UsageError, match="two filters are named 'length'"):
        make_filters([Length(max_sample_tokens=5), Length(min_sampled_tokens=5)])
    with pytest.raises(UsageError, match="cannot be named 'staleness'"):
        make_filters([Length(name="staleness")])


def test_settings_choose_by_kind():
    read = msgspec.convert({"kind": "repetition", "mode": "enforce", "window": 16}, FilterConfig)
    assert read == Repetition(mode=Mode.ENFORCE, window=16)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"kind": "repetition", "windows": 16}, FilterConfig)
    for wrong in ({"window": 0}, {"window": 300}, {"max_share": 1.0}):
        with pytest.raises(UsageError):
            Repetition(**wrong)
    with pytest.raises(UsageError):
        Gibberish(window=0)
