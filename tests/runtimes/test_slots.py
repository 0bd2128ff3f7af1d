"""CPU slots under random arrivals, releases and cancellations."""

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rollwright.runtimes import CpuSlots
from rollwright.runtimes.slots import _lose_patience, default_slots, usable_cores
from rollwright.wire import RuntimeFault

_MOVES = ("arrive", "leave", "cancel", "lose patience", "turn")


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from(_MOVES), st.integers(0, 9))))
@example(1, [("arrive", 0), ("arrive", 0), ("turn", 0), ("leave", 0), ("turn", 0), ("cancel", 1)])
@example(1, [("arrive", 0), ("arrive", 0), ("turn", 0), ("leave", 0), ("lose patience", 0), ("turn", 0)])
@example(1, [("arrive", 0), ("arrive", 0), ("turn", 0), ("lose patience", 0), ("cancel", 1)])
def test_slots_are_never_oversold_and_never_lost(count, moves):
    asyncio.run(_play(count, moves))


async def _play(count, moves):
    slots, holding = CpuSlots(count), {}

    async def user(name, gate):
        async with slots.take():
            holding[name] = gate
            assert len(holding) <= count
            try:
                await gate.wait()
            finally:
                del holding[name]

    users = []
    for move, pick in moves:
        if move == "arrive":
            users.append(asyncio.create_task(user(len(users), asyncio.Event())))
        elif move == "leave" and holding:
            list(holding.values())[pick % len(holding)].set()
        elif move == "cancel" and users:
            users[pick % len(users)].cancel()
        elif move == "lose patience" and slots.contended:
            _lose_patience(slots._waiting[pick % len(slots._waiting)])
        else:
            await asyncio.sleep(0)
    while not all(task.done() for task in users):
        for gate in list(holding.values()):
            gate.set()
        await asyncio.sleep(0)
    assert repr(slots) == f"<CpuSlots 0 of {count} taken, 0 waiting>"
    assert all(task.cancelled() or type(task.exception()) in (RuntimeFault, type(None)) for task in users)


async def test_first_come_first_served():
    slots, served = CpuSlots(1), []

    async def user(name):
        async with slots.take():
            served.append(name)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as users:
        for name in range(20):
            users.create_task(user(name))
    assert served == list(range(20))


async def test_waiting_has_an_end():
    slots = CpuSlots(1, patience_s=0.01)
    async with slots.take() as queue_s:
        assert queue_s == 0.0
        with pytest.raises(RuntimeFault, match="no CPU slot within"):
            async with slots.take():
                pass
    assert repr(slots) == "<CpuSlots 0 of 1 taken, 0 waiting>"


async def test_the_default_is_one_per_loop_and_counts_usable_cores():
    assert default_slots() is default_slots()
    assert default_slots().count == usable_cores() >= 1
    with pytest.raises(RuntimeFault):
        CpuSlots(0)
