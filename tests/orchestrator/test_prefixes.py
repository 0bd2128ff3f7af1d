"""The longest-prefix rule: tokens decide what a call continues, where the messages cannot tell."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from orchestrator.call_trees import World, worlds
from rollwright.orchestrator import samples_of
from rollwright.orchestrator.prefixes import rejoined
from rollwright.wire import CallRecord, Routing, TokenSegment, Trace
from rollwright.wire.arrays import column


def tape(base: int, prompt: list[int], answer: list[int], routing: Routing | None = None) -> TokenSegment:
    mask = [False] * len(prompt) + [True] * len(answer)
    logprobs = [0.0] * len(prompt) + [-0.25] * len(answer)
    return TokenSegment(base, column(prompt + answer, "i4"), column(mask, "b1"), column(logprobs, "f4"), routing)


def trace_of(*tapes: TokenSegment) -> Trace:
    calls = tuple(CallRecord(prompt=0, reply=index, tokens=each) for index, each in enumerate(tapes))
    return Trace(task_id="t", attempt=0, calls=calls)


def rows(*values: int, layers: int = 1) -> np.ndarray:
    return column(np.repeat(np.array(values), layers).reshape(-1, layers, 1), "u1")


def test_a_conversation_that_goes_on_by_its_tokens_is_one_sample():
    trace = trace_of(
        tape(-1, [1, 2], [10], Routing(0, rows(1, 2))),
        tape(-1, [1, 2, 10, 3], [11], Routing(0, rows(9, 9, 3, 4))),
        tape(-1, [1, 2, 10, 3, 11, 4], [12], Routing(0, rows(9, 9, 9, 9, 5, 6))),
    )
    (sample,) = samples_of(trace)
    assert sample.ids.tolist() == [1, 2, 10, 3, 11, 4, 12]
    assert sample.mask.tolist() == [False, False, True, False, True, False, True]
    assert sample.logprobs[sample.mask].tolist() == [-0.25] * 3
    assert sample.span_lengths.tolist() == [3, 2, 2]
    # Each row as it was sampled, the last of a turn from the next payload.
    assert sample.routed.ravel().tolist() == [1, 2, 3, 4, 5, 6, 0]


def test_what_only_looks_alike_stays_apart():
    half = trace_of(tape(-1, [1, 2], [10, 11]), tape(-1, [1, 2, 10, 3], [12]))
    assert [sample.ids.tolist() for sample in samples_of(half)] == [[1, 2, 10, 11], [1, 2, 10, 3, 12]]
    later = trace_of(tape(-1, [1, 2, 10, 3], [12]), tape(-1, [1, 2], [10]))
    assert len(samples_of(later)) == 2
    sampled = trace_of(tape(-1, [1], [2]), tape(-1, [1], [2, 3]))
    assert len(samples_of(sampled)) == 2


def test_the_same_answer_sampled_twice_is_trained_twice_and_continued_once():
    trace = trace_of(tape(-1, [1], [5]), tape(-1, [1], [5]), tape(-1, [1, 5, 2], [6]))
    assert [sample.ids.tolist() for sample in samples_of(trace)] == [[1, 5], [1, 5, 2, 6]]
    assert sum(int(sample.mask.sum()) for sample in samples_of(trace)) == 3


def test_routed_experts_of_two_shapes_are_not_joined():
    trace = trace_of(
        tape(-1, [1], [5], Routing(0, rows(1))), tape(-1, [1, 5, 2], [6], Routing(0, rows(1, 2, 3, layers=2)))
    )
    assert [sample.routed.shape for sample in samples_of(trace)] == [(2, 1, 1), (4, 2, 1)]


@given(worlds())
def test_tapes_say_the_same_and_rest_on_the_longest(world: World):
    tapes = {index: call.tokens for index, call in enumerate(world.trace.calls) if call.tokens is not None}
    joined = rejoined(tapes)
    assert list(joined) == list(tapes)
    assert [joined[call].base for call in joined] == [world.bases()[call] for call in joined]

    def ids(among: dict[int, TokenSegment], call: int) -> list[int]:
        return [] if call < 0 else ids(among, among[call].base) + among[call].ids.tolist()

    for call in tapes:
        assert ids(joined, call) == ids(tapes, call) == world.log[call].tape
        assert joined[call].sampled.sum() == tapes[call].sampled.sum()


def test_a_thousand_sub_agents_are_not_compared_each_with_each(monkeypatch):
    compared = []
    equal = np.array_equal
    monkeypatch.setattr(np, "array_equal", lambda left, right: compared.append(1) or equal(left, right))
    tapes = {call: tape(-1, [1, 2, call], [3]) for call in range(1_000)}
    assert all(joined.base == -1 for joined in rejoined(tapes).values())
    chain = {call: tape(call - 1, [1, 2], [3]) for call in range(1_000)}
    assert rejoined(chain) == chain
    assert compared == []
