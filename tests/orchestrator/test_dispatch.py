"""Order of tasks, and the books: each dispatched rollout is settled once, whatever arrives in whatever order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.call_trees import FAILURE, chat
from rollwright.orchestrator import GroupsFailed
from rollwright.orchestrator.dispatch import Cursor, Step
from rollwright.orchestrator.groups import compile_group, lost_group
from rollwright.wire import Trace


@given(st.integers(1, 9), st.integers(0, 2**40), st.integers(1, 4), st.integers(1, 40))
def test_each_epoch_has_every_task_once_and_no_attempt_comes_twice(tasks, seed, group_size, groups):
    cursor = Cursor(tasks, seed=seed, group_size=group_size)
    tickets = [cursor.next() for _ in range(groups)]
    for start in range(0, groups - tasks + 1, tasks):
        assert sorted(ticket.task for ticket in tickets[start : start + tasks]) == list(range(tasks))
    keys = [(ticket.task, ticket.first_attempt + i) for ticket in tickets for i in range(group_size)]
    assert len(set(keys)) == len(keys)
    middle = Cursor(tasks, seed=seed, group_size=group_size, number=groups // 2)
    assert [middle.next() for _ in range(groups // 2, groups)] == tickets[groups // 2 :]


def test_another_seed_gives_another_order():
    orders = {
        tuple(cursor.next().task for _ in range(50)) for cursor in (Cursor(50, seed=s, group_size=1) for s in range(3))
    }
    assert len(orders) == 3


@given(
    st.integers(1, 6), st.integers(1, 4), st.integers(0, 3), st.lists(st.integers(0, 2**16), min_size=60, max_size=60)
)
def test_a_step_settles_under_any_order_of_arrivals(groups, running, replaced, choices):
    step = Step(1, Cursor(5, seed=0, group_size=2), groups=groups, group_size=2, running=running, replaced=replaced)
    in_flight, empty = [], 0
    choice = iter(choices)
    while not step.settled:
        in_flight += step.launch()
        assert 0 < len(in_flight) <= running
        assert step.accounts.in_flight == 2 * len(in_flight)
        pick = next(choice)
        ticket = in_flight.pop(pick % len(in_flight))
        fails = pick % 3 == 0
        empty += fails
        failed = lost_group(ticket, 2, "group_timed_out")
        step.arrive(failed if fails else compile_group(ticket, [chat(1), Trace("t", 1, failure=FAILURE)]))
    step.abandon()
    books = step.accounts
    assert books.in_flight == 0
    assert books.failed.get("cancelled", 0) == 2 * len(in_flight)
    if empty > replaced:
        with pytest.raises(GroupsFailed):
            step.groups()
    else:
        numbers = [group.ticket.number for group in step.groups()]
        assert numbers == sorted(numbers)
        assert len(numbers) == groups == books.trained
        assert in_flight == []
        assert repr(step) == f"<Step 1: {groups} of {groups} groups, 0 running, {empty} replaced>"
