"""Routed experts land where they belong: against a naive reference for any payloads, and at every boundary."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.call_trees import chat
from rollwright.orchestrator import samples_of
from rollwright.orchestrator.routing import plan_routing
from rollwright.wire import CallRecord, Routing, TokenSegment, Trace
from rollwright.wire.arrays import column


def tape(base: int, ids: list[int], sampled: int, routing: Routing | None = None) -> TokenSegment:
    """`ids`, of which the last `sampled` were sampled."""
    mask = [False] * (len(ids) - sampled) + [True] * sampled
    return TokenSegment(base, column(ids, "i4"), column(mask, "b1"), column(np.zeros(len(ids)), "f4"), routing)


def trace_of(*tapes: TokenSegment) -> Trace:
    calls = tuple(CallRecord(prompt=0, reply=index, tokens=each) for index, each in enumerate(tapes))
    return Trace(task_id="t", attempt=0, calls=calls)


def rows(values: list[int], dtype: str = "u1") -> np.ndarray:
    return column(np.array(values).reshape(-1, 1, 1), dtype)


@st.composite
def payloads(draw) -> list[tuple[int, int, int, list[int] | None]]:
    """Per turn: tokens, how many of them sampled, where its payload begins, and its rows. Any that fit the tape."""
    turns, end = [], 0
    for turn in range(draw(st.integers(1, 8))):
        new = draw(st.integers(0, 5))
        end += new
        start = draw(st.integers(0, end))
        count = draw(st.one_of(st.none(), st.integers(0, end - start), st.just(end - start)))
        values = None if count is None else [1 + (17 * turn + position) % 255 for position in range(count)]
        turns.append((new, draw(st.integers(0, new)), start, values))
    return turns


@given(payloads())
def test_any_payloads_land_as_in_the_naive_reference(turns):
    """The oldest payload that has a row gives it, but none gives that of its own last sampled token."""
    expected: dict[int, int] = {}
    tapes, ends, end = [], [], 0
    for new, sampled, start, values in turns:
        end += new
        known = end - (1 if sampled else 0)
        for position, value in enumerate(values or [], start):
            if position < known:
                expected.setdefault(position, value)
        routing = None if values is None else Routing(start, rows(values))
        tapes.append(tape(len(tapes) - 1, [0] * new, sampled, routing))
        ends.append(end)
    kind, runs = plan_routing(tapes, ends)
    if all(values is None for *_, values in turns):
        assert (kind, runs) == (None, [])
        return
    assert kind == ("u1", 1, 1)
    landed, holes = np.zeros(end, int), np.zeros(end, bool)
    touched = np.zeros(end, int)
    for name, row, sources in runs:
        values = np.concatenate(sources).ravel()
        place = slice(row, row + len(values))
        (landed if name == "routed" else holes)[place] = values
        touched[place] += 1
    assert landed.tolist() == [expected.get(position, 0) for position in range(end)]
    assert holes.tolist() == [position not in expected for position in range(end)]
    # Each row is written once, or is a hole.
    assert (touched == 1).all()


@pytest.mark.parametrize("turns", [1, 2, 10, 200])
def test_a_chat_without_holes_is_one_run(turns):
    """So that a rollout of many turns moves in one call, and its cost is that of its bytes."""
    tapes = []
    for turn in range(turns):
        first = max(4 * turn - 1, 0)
        tapes.append(tape(turn - 1, [0] * 4, 2, Routing(first, rows([1] * (4 * turn + 3 - first)))))
    _, runs = plan_routing(tapes, list(range(4, 4 * turns + 1, 4)))
    assert [(name, row, len(sources)) for name, row, sources in runs] == [
        ("routed", 0, turns),
        ("routed_hole", 4 * turns - 1, 1),
    ]


def test_payloads_of_two_types_lie_in_the_wider_one():
    trace = trace_of(
        tape(-1, [1, 2, 3], 1, Routing(0, rows([7, 8]))),
        tape(0, [4, 5], 1, Routing(2, rows([300, 301], "u2"))),
    )
    (sample,) = samples_of(trace)
    assert sample.routed.dtype == np.uint16
    assert sample.routed.ravel().tolist() == [7, 8, 300, 301, 0]


def test_after_compaction_the_summary_is_a_tape_of_its_own():
    """History was rewritten: the old branch ends where it was, the new one begins with what the engine was shown."""
    trace = trace_of(
        tape(-1, [1, 2, 10, 11], 2, Routing(0, rows([1, 2, 3]))),
        tape(0, [3, 12], 1, Routing(3, rows([4, 5]))),
        tape(-1, [1, 90, 13], 1, Routing(0, rows([21, 22]))),
        tape(2, [4, 14], 1, Routing(2, rows([23, 24]))),
    )
    before, after = samples_of(trace)
    assert before.ids.tolist() == [1, 2, 10, 11, 3, 12]
    assert after.ids.tolist() == [1, 90, 13, 4, 14]
    assert before.routed.ravel().tolist() == [1, 2, 3, 4, 5, 0]
    assert after.routed.ravel().tolist() == [21, 22, 23, 24, 0]
    assert [sample.ids[sample.mask].tolist() for sample in (before, after)] == [[10, 11, 12], [13, 14]]


def test_a_sub_agent_is_a_branch_and_its_parent_goes_on_unbroken():
    trace = trace_of(
        tape(-1, [1, 10], 1, Routing(0, rows([1]))),
        tape(-1, [7, 20], 1, Routing(0, rows([71]))),  # The sub-agent, with a prompt of its own.
        tape(1, [8, 21], 1),  # It was answered without routing.
        tape(0, [2, 11], 1, Routing(1, rows([2, 3]))),
    )
    helper, parent = samples_of(trace)
    assert (helper.branch, parent.branch) == (0, 1)
    assert parent.ids.tolist() == [1, 10, 2, 11]
    assert parent.routed.ravel().tolist() == [1, 2, 3, 0]
    assert helper.ids.tolist() == [7, 20, 8, 21]
    assert helper.routed_hole.tolist() == [False, True, True, True]


def test_two_continuations_of_one_turn_take_its_last_row_each_from_its_own_payload():
    trace = trace_of(
        tape(-1, [1, 10], 1, Routing(0, rows([1]))),
        tape(0, [2, 11], 1, Routing(1, rows([2, 3]))),
        tape(0, [3, 12], 1, Routing(1, rows([2, 4]))),
    )
    first, second = samples_of(trace)
    assert first.routed.ravel().tolist() == [1, 2, 3, 0]
    assert second.routed.ravel().tolist() == [1, 2, 4, 0]
    assert first.mask.tolist() == [False, True, False, True]
    assert second.mask.tolist() == [False, False, False, True]


def test_work_of_a_rollout_with_a_hole_in_every_other_turn_does_not_grow_with_its_square():
    """Counted in runs: one per turn at most, however many holes lie behind."""
    tapes, turns = [], 400
    for turn in range(turns):
        routing = Routing(4 * turn, rows([1] * 3)) if turn % 2 else None
        tapes.append(tape(turn - 1, [0] * 4, 2, routing))
    _, runs = plan_routing(tapes, list(range(4, 4 * turns + 1, 4)))
    assert len(runs) == turns + 1
    assert sum(len(sources) for _, _, sources in runs) == turns + 1


def test_a_trace_without_routing_has_none():
    (sample,) = samples_of(msgspec.structs.replace(chat(3)))
    assert sample.routed is None
    assert sample.routed_hole is None
