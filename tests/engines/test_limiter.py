"""The gate's books balance under any interleaving, and the limit follows the endpoint."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollwright.engines.limiter import Gate, Limiter, Ticket


def check_books(gate: Gate, live: set[Ticket]) -> None:
    assert set(gate.waiting) | gate.in_flight == live
    assert not set(gate.waiting) & gate.in_flight
    assert 1 <= gate.limit <= gate.ceiling
    assert all((ticket.admitted_at is not None) == (ticket in gate.in_flight) for ticket in live)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "leave", "cancel", "overloaded", "went_well"]),
        st.integers(0, 50),
        st.floats(0.0, 2.0),
    ),
    max_size=200,
)


@given(st.integers(1, 8), STEPS)
def test_no_slot_is_lost_and_nobody_overtakes(ceiling: int, steps: list[tuple[str, int, float]]) -> None:
    gate = Gate(ceiling)
    now, order, admitted = 0.0, [], []
    for verb, pick, passed_s in steps:
        now += passed_s
        flying = sorted(gate.in_flight, key=order.index)
        if verb == "enter":
            order.append(gate.enter(now))
            if order[-1].admitted_at is not None:
                admitted.append(order[-1])
        elif verb == "cancel" and gate.waiting:
            admitted += gate.leave(list(gate.waiting)[pick % len(gate.waiting)], now)
        elif flying:
            ticket = flying[pick % len(flying)]
            if verb == "overloaded":
                gate.overloaded(ticket, now)
            elif verb == "went_well":
                gate.went_well(ticket)
            admitted += gate.leave(ticket, now)
        check_books(gate, set(gate.waiting) | gate.in_flight)
        assert not gate.waiting or len(gate.in_flight) >= int(gate.limit), "somebody waits beside a free slot"
    assert admitted == sorted(admitted, key=order.index), "somebody overtook"


def fill(gate: Gate, calls: int, now: float) -> list[Ticket]:
    return [gate.enter(now) for _ in range(calls)]


def test_a_storm_lowers_the_limit_once_per_window() -> None:
    gate = Gate(100)
    calls = fill(gate, 100, now=0.0)
    for ticket in calls:
        gate.overloaded(ticket, now=5.0)
    assert int(gate.limit) == 70
    # All of them were sent before the cut, so even later windows learn nothing from them.
    for ticket in calls:
        gate.overloaded(ticket, now=20.0)
        gate.leave(ticket, now=20.0)
    assert int(gate.limit) == 70


def test_a_storm_that_goes_on_leads_down_to_one_call_and_never_to_none() -> None:
    gate = Gate(64)
    for second in range(40):
        for ticket in fill(gate, 64, now=second * 2.0):
            if ticket.admitted_at is not None:
                gate.overloaded(ticket, now=second * 2.0 + 1.5)
        for ticket in [*gate.waiting, *gate.in_flight]:
            gate.leave(ticket, now=second * 2.0 + 1.6)
    assert gate.limit == 1.0
    assert gate.enter(1000.0).admitted_at == 1000.0


def test_the_cut_starts_from_what_was_in_flight() -> None:
    gate = Gate(1000)
    calls = fill(gate, 10, now=0.0)
    gate.overloaded(calls[0], now=1.0)
    assert int(gate.limit) == 7


@given(st.integers(1, 300), st.integers(1, 300))
def test_good_calls_bring_the_ceiling_back(ceiling: int, start: int) -> None:
    gate = Gate(ceiling)
    gate.limit = float(min(start, ceiling))
    rounds = 0
    while gate.limit < ceiling:
        rounds += 1
        for ticket in fill(gate, int(gate.limit), now=float(rounds)):
            gate.went_well(ticket)
            gate.leave(ticket, now=float(rounds))
        assert rounds <= 80, "recovery takes a bounded number of rounds"


async def worker(limiter: Limiter, holds: int, seen: list[int]) -> None:
    ticket = await limiter.acquire(timeout_s=60)
    try:
        seen.append(len(limiter.gate.in_flight))
        for _ in range(holds):
            await asyncio.sleep(0)
        limiter.went_well(ticket)
    finally:
        limiter.release(ticket)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 12)), min_size=1, max_size=25),
)
def test_cancelling_at_any_moment_loses_no_slot(ceiling: int, jobs: list[tuple[int, int | None]]) -> None:
    async def scenario() -> None:
        limiter = Limiter(ceiling)
        seen: list[int] = []
        tasks = [asyncio.create_task(worker(limiter, holds, seen)) for holds, _ in jobs]
        for moment in range(13):
            for task, (_, cancelled_at) in zip(tasks, jobs, strict=True):
                if cancelled_at == moment:
                    task.cancel()
            await asyncio.sleep(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
        assert max(seen, default=0) <= ceiling
        assert repr(limiter.gate) == f"<Gate 0 in flight, 0 waiting, limit {ceiling}>"

    asyncio.run(scenario())


async def test_a_slot_granted_to_a_cancelled_waiter_goes_to_the_next() -> None:
    limiter = Limiter(1)
    first = await limiter.acquire(1)
    second = asyncio.create_task(limiter.acquire(60))
    third = asyncio.create_task(limiter.acquire(60))
    await asyncio.sleep(0)
    limiter.release(first)  # Admits the second, whose task has not run yet ...
    second.cancel()  # ... and never will.
    ticket = await third
    assert second.cancelled()
    assert limiter.gate.in_flight == {ticket}
    limiter.release(ticket)
    limiter.release(ticket)
    assert repr(limiter.gate) == "<Gate 0 in flight, 0 waiting, limit 1>"


async def test_a_wait_has_a_deadline() -> None:
    limiter = Limiter(1)
    held = await limiter.acquire(1)
    with pytest.raises(TimeoutError):
        await limiter.acquire(timeout_s=0)
    assert repr(limiter.gate) == "<Gate 1 in flight, 0 waiting, limit 1>"
    limiter.release(held)
