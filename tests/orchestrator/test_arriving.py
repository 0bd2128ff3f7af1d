"""What has come back and is not in its file yet: counted, bounded, and never the end of a run."""

from __future__ import annotations

import asyncio
import threading
import weakref

from orchestrator.call_trees import chat
from orchestrator.test_orchestrate import TASKS, ScriptedServing, orchestrator, settings_for
from rollwright.orchestrator.arriving import Arriving, arrays_bytes, arrays_of
from rollwright.orchestrator.concurrency import ConcurrencySettings
from rollwright.orchestrator.drafts import samples_of
from rollwright.orchestrator.storage import let_go


def bytes_of_a_group() -> int:
    return 2 * arrays_bytes(chat(2))


def test_the_bytes_of_a_trace_are_those_of_its_arrays():
    (sample,) = samples_of(chat(3))
    assert arrays_bytes(chat(3)) == 9 * len(sample.ids)


def test_what_is_here_counts_until_it_is_let_go():
    arriving = Arriving(budget_bytes=bytes_of_a_group())
    with arriving.counted([chat(2)]):
        assert arriving.has_room
        with arriving.counted([chat(2)]):
            assert not arriving.has_room
            assert repr(arriving) == f"<Arriving 2 groups with {arriving.bytes:,} of {arriving.bytes:,} bytes>"
        assert arriving.has_room
    assert (arriving.bytes, arriving.groups) == (0, 0)


async def test_no_group_is_begun_while_the_budget_is_spent_and_the_run_goes_on_afterwards(tmp_path, monkeypatch):
    """Two groups may run at once. One has landed, so there is a seat, and the other one is held while it lands."""
    serving = ScriptedServing()
    two_groups = ConcurrencySettings(initial=4, least=1, most=4, adaptive=False)
    settings = settings_for(tmp_path, concurrency=two_groups)
    async with orchestrator(None, serving, TASKS, settings=settings) as run:
        run.arriving.budget_bytes = 1
        held, seen = threading.Event(), []
        land = run._storage.land

        def slow(ticket, traces):
            assert ticket.number == 0 or held.wait(10)
            return land(ticket, traces)

        monkeypatch.setattr(run._storage, "land", slow)
        going = asyncio.create_task(run.run())
        while run.planner.ready != 2 or run.arriving.groups != 1:
            await asyncio.sleep(0)
        begun = len(serving.keys)
        for _ in range(50):
            run._wake.set()
            await asyncio.sleep(0)
            seen.append(len(serving.keys))
        assert set(seen) == {begun}
        assert run.arriving.bytes == run.arriving.groups * bytes_of_a_group()
        held.set()
        report = await going
    assert report.trained == 24
    assert (run.arriving.bytes, run.arriving.groups) == (0, 0)


async def test_what_a_cancelled_group_left_to_a_thread_counts_until_the_thread_is_done(tmp_path, monkeypatch):
    serving = ScriptedServing()
    async with orchestrator(tmp_path, serving) as run:
        held, begun = threading.Event(), threading.Event()
        land = run._storage.land

        def slow(ticket, traces):
            begun.set()
            assert held.wait(10)
            return land(ticket, traces)

        monkeypatch.setattr(run._storage, "land", slow)
        going = asyncio.create_task(run.run())
        assert await asyncio.to_thread(begun.wait, 10)
        while serving.running:
            await asyncio.sleep(0)
        groups = run.arriving.groups
        assert groups >= 1
        assert run.cancel_group(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert run.arriving.groups == groups
        held.set()
        report = await going
    assert report.dropped == {"cancelled": 2}
    assert (run.arriving.bytes, run.arriving.groups) == (0, 0)


def test_memory_is_given_back_array_by_array():
    """Freed at once, a group would hold the interpreter; the last array goes after all others."""
    freed = []
    traces = [chat(2), chat(3)]
    arrays = [array for trace in traces for call in trace.calls for array in arrays_of(call.tokens)]
    for place, array in enumerate(arrays):
        weakref.finalize(array, lambda place=place: freed.append((place, len(traces))))
    del arrays, array
    let_go(traces)
    # Each was freed after the traces were gone, so by its own turn and not with its trace.
    assert freed == [(place, 0) for place in reversed(range(len(freed)))]
    assert len(freed) == 15
