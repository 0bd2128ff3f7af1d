"""The threads of plain hooks: bounded, and not to be exhausted by hooks that never return."""

import asyncio
import contextvars
import threading

import pytest

from rollwright.tasks.threads import HookThreads


async def test_no_more_threads_than_seats():
    threads = HookThreads(size=3)
    inside, most, lock = 0, 0, threading.Lock()
    barrier = threading.Barrier(3)

    def work():
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        barrier.wait(10)
        with lock:
            inside -= 1
        return threading.current_thread().name

    names = await asyncio.gather(*(threads.run(work) for _ in range(30)))
    assert most == 3
    assert len(set(names)) == 3
    assert all(name.startswith("rollwright-hook") for name in names)


async def test_the_callers_context_is_there():
    variable = contextvars.ContextVar("variable", default="default")
    variable.set("mine")
    assert await HookThreads(size=1).run(variable.get) == "mine"


async def test_errors_reach_the_caller():
    with pytest.raises(ZeroDivisionError):
        await HookThreads(size=1).run(lambda: 1 // 0)


async def test_a_hook_that_never_returns_costs_a_thread_and_not_the_pool():
    threads = HookThreads(size=2)
    let_go = threading.Event()
    began = [asyncio.Event() for _ in range(2)]
    loop = asyncio.get_running_loop()

    def stuck(index):
        loop.call_soon_threadsafe(began[index].set)
        let_go.wait(30)

    calls = [asyncio.create_task(threads.run(lambda index=index: stuck(index))) for index in range(2)]
    for event in began:
        await asyncio.wait_for(event.wait(), 10)
    waiting = asyncio.create_task(threads.run(lambda: "served"))
    await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    assert await asyncio.gather(*calls, return_exceptions=True) != [None, None]
    assert await asyncio.wait_for(waiting, 10) == "served"
    assert "2 lost" in repr(threads)
    let_go.set()
    assert await asyncio.wait_for(threads.run(lambda: "again"), 10) == "again"


async def test_lost_threads_are_limited():
    threads = HookThreads(size=1, max_lost=1)
    let_go = threading.Event()
    loop = asyncio.get_running_loop()
    for _ in range(2):
        began = asyncio.Event()
        call = asyncio.create_task(
            threads.run(lambda began=began: (loop.call_soon_threadsafe(began.set), let_go.wait(30)))
        )
        await asyncio.wait_for(began.wait(), 10)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    last = asyncio.create_task(threads.run(lambda: "served"))
    await asyncio.sleep(0)
    assert not last.done()
    assert repr(threads) == "<HookThreads 1 threads, 0 free, 1 lost, 3 hops>"
    let_go.set()
    assert await asyncio.wait_for(last, 10) == "served"


async def test_a_call_cancelled_before_it_began_never_begins():
    threads = HookThreads(size=1)
    let_go, ran = threading.Event(), []
    blocker = asyncio.create_task(threads.run(lambda: let_go.wait(30)))
    await asyncio.sleep(0)
    queued = asyncio.create_task(threads.run(lambda: ran.append(1)))
    await asyncio.sleep(0)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    let_go.set()
    await blocker
    assert await threads.run(lambda: list(ran)) == []
