"""Shelves: what is taken is what was laid, or nothing; and nothing is left behind."""

import asyncio
import os
import subprocess
import sys
from contextlib import aclosing

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serve_tasks import play

from rollwright.serve import SlotSettings
from rollwright.serve import shelf as shelves
from rollwright.serve.protocol import Bye, Laid
from rollwright.serve.shelf import Shelf, ShelfLost, Shelves
from rollwright.wire import WireError

SIZE = 4096
LEAST = 100


@pytest.fixture(autouse=True, scope="module")
def small_frames_are_large_here():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shelves, "LEAST_BYTES", LEAST)
        yield


def lay(shelf, frames, now=0.0):
    laid = shelf.reserve(frames, now)
    return None if laid is None else (laid, shelf.lay(laid, frames))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1500), max_size=4), max_size=30), st.randoms(use_true_random=False))
def test_what_is_taken_is_what_was_laid(messages, chance):
    shelf, reader = Shelf(SIZE), Shelves()
    lying = []
    for number, sizes in enumerate(messages):
        frames = [bytes([number + index]) * size for index, size in enumerate(sizes)]
        if (found := lay(shelf, frames)) is not None:
            laid, left = found
            assert [len(frame) for frame in left] == [size if size < LEAST else 0 for size in sizes]
            lying.append((laid, left, frames))
        assert shelf.held_bytes <= SIZE
        while lying and chance.random() < 0.5:
            laid, left, frames = lying.pop(chance.randrange(len(lying)))
            assert [bytes(frame) for frame in reader.take(laid, left, 0.0)] == frames
            with pytest.raises(ShelfLost):
                reader.take(laid, left, 0.0)
    for laid, _, _ in lying:
        reader.leave(laid)
    shelf.sweep(0.0)
    assert shelf.empty or not len(reader), "what was left alone by a reader that has looked there is still there"
    shelf.close()


def test_what_nobody_takes_is_cleared_away_and_is_no_result_any_more():
    shelf, reader = Shelf(SIZE), Shelves()
    old, left = lay(shelf, [b"a" * SIZE])
    assert lay(shelf, [b"b" * SIZE]) is None
    new, other = lay(shelf, [b"b" * SIZE], now=shelves.FORGOTTEN_S + 1.0)
    with pytest.raises(ShelfLost, match="cleared away"):
        reader.take(old, left, 0.0)
    assert bytes(reader.take(new, other, 0.0)[0]) == b"b" * SIZE
    shelf.close()


def test_memory_goes_back_to_the_system_when_nothing_lies_there():
    shelf, reader = Shelf(2**20), Shelves()
    laid, left = lay(shelf, [bytes(2**20)])
    assert not shelf.may_give_back(0.0)
    reader.take(laid, left, 0.0)
    assert os.fstat(shelf._fd).st_blocks * 512 >= 2**20
    assert shelf.may_give_back(0.0)
    assert shelf.reserve([bytes(LEAST)], 0.0) is None
    shelf.give_back()
    shelf.gave_back()
    assert os.fstat(shelf._fd).st_blocks * 512 <= 2**13
    laid, left = lay(shelf, [b"c" * LEAST])
    assert bytes(reader.take(laid, left, 0.0)[0]) == b"c" * LEAST
    shelf.close()


@given(st.data())
def test_whatever_a_peer_says_of_its_shelf_is_looked_at_first(data):
    shelf, reader = Shelf(SIZE), Shelves()
    laid, left = lay(shelf, [bytes(LEAST)])
    lies = {
        name: data.draw(st.integers(-(2**70), 2**70) | st.integers(-2, 600), label=name)
        for name in data.draw(st.sets(st.sampled_from(["pid", "fd", "name", "entry", "number", "begin"]), min_size=1))
    }
    said = Laid(**{**{field: getattr(laid, field) for field in Laid.__struct_fields__}, **lies})
    # Where on its own shelf a frame lies is the worker's word alone.
    if msgspec.structs.replace(said, begin=0) != laid or not 0 <= said.begin <= SIZE - 128:
        with pytest.raises((ShelfLost, WireError)):
            reader.take(said, left, 0.0)
    for frames in [((0, SIZE + 1),), ((3, LEAST),), ((-1, LEAST),), ((0, -5),)]:
        with pytest.raises(WireError):
            reader.take(Laid(*(getattr(laid, field) for field in Laid.__struct_fields__[:-1]), frames), left, 0.0)
    shelf.close()


def test_a_descriptor_that_is_no_shelf_is_left_alone():
    with open(os.devnull, "rb+") as nothing, pytest.raises(ShelfLost):
        Shelves().take(Laid(os.getpid(), nothing.fileno(), 1, 1, 1, 0, ((0, 5),)), [b""], 0.0)


OWNER = """
import sys, msgspec
from rollwright.serve.shelf import Shelf
shelf = Shelf(2**21)
for _ in range(2):
    laid = shelf.reserve([bytes(2**20)], 0.0)
    shelf.lay(laid, [b"x" * 2**20])
    print(msgspec.json.encode(laid).decode(), flush=True)
sys.stdin.read()
"""


def test_what_a_killed_worker_laid_is_there_for_whoever_has_looked_before():
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        first, second = (msgspec.json.decode(owner.stdout.readline(), type=Laid) for _ in range(2))
        reader = Shelves()
        assert bytes(reader.take(first, [b""], 0.0)[0]) == b"x" * 2**20
        owner.kill()
    assert bytes(reader.take(second, [b""], 0.0)[0]) == b"x" * 2**20
    with pytest.raises(ShelfLost):
        Shelves().take(second, [b""], 0.0)
    reader.leave_unused(shelves.UNUSED_S + 1.0)
    assert len(reader) == 0


async def until(condition, timeout_s=20.0):
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(0.02)


def ids_are_whole(trace):
    ids = trace.calls[0].tokens.ids
    return bool((ids == np.arange(len(ids))).all())


async def test_large_results_come_by_way_of_the_shelf_and_of_the_socket_alike(puppets, runs, monkeypatch):
    async with puppets(workers=1, capacity=4) as (_, client):
        group = await client.run_group(play("large:3"), 3)
        assert all(map(ids_are_whole, group))
        assert len(client._parcels._shelves) == 1
        (worker,) = (await client.ask("status"))["workers"]
        assert worker["vitals"].get("shelf_budget_bytes", shelves.SHELF_BYTES) == shelves.SHELF_BYTES
        assert len(runs()) == 3

        def locked(laid, now):
            raise ShelfLost("no entry")

        client._parcels._shelves.leave_all()
        monkeypatch.setattr(shelves, "_look", locked)
        assert ids_are_whole(await client.run(play("large:3")))
        assert client._link.place == ""
        assert len(runs()) == 3 + 4
        assert ids_are_whole(await client.run(play("large:3")))
        assert len(runs()) == 3 + 5


async def test_a_worker_that_leaves_waits_until_its_results_were_fetched(puppets, monkeypatch):
    look = shelves._look
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    go = asyncio.Event()

    def slowly(laid, now):
        loop.call_soon_threadsafe(asked.set)
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result(20.0)
        return look(laid, now)

    monkeypatch.setattr(shelves, "_look", slowly)
    async with puppets() as (_, client):
        running = asyncio.create_task(client.run(play("large:3")))
        async with asyncio.timeout(20.0):
            await asked.wait()
        await client.ask("drain")

        async def leaving():
            return any(worker["phase"] == "leaving" for worker in (await client.ask("status"))["workers"])

        await until(leaving)
        go.set()
        assert ids_are_whole(await running)
        assert (await client.ask("status"))["counts"]["dispatched"] == 1


async def test_what_the_caller_has_not_taken_keeps_more_from_being_begun(puppets):
    async with puppets(client={"budget_bytes": 2**20}) as (_, client):

        async def status():
            return await client.ask("status")

        async with aclosing(client.stream_group(play("large:1"), 3)) as traces:
            assert ids_are_whole(await anext(traces))

            async def all_came():
                return (await status())["untaken_bytes"] > 4 * 2**20

            await until(all_came)
            other = asyncio.create_task(client.run(play("plain")))

            async def waits():
                return (await status())["queued_requests"] == 1

            await until(waits)
            assert (await status())["slow_clients"] == 1
            assert len([trace async for trace in traces]) == 2
        assert (await other).task_id == "plain"

        async def all_taken():
            return (await status())["untaken_bytes"] == 0

        await until(all_taken)


async def test_a_client_that_was_given_up_asks_again(puppets, runs, tmp_path):
    async with puppets() as (_, client):
        running = asyncio.create_task(client.run(play("hold:go")))

        async def begun(count):
            return len(runs()) >= count

        await until(lambda: begun(1))
        client._link.send(Bye())
        await until(lambda: begun(2))
        (tmp_path / "go").touch()
        assert (await running).task_id == "hold:go"


async def test_what_a_stalled_worker_has_not_begun_is_run_by_its_neighbour(puppets, runs, tmp_path):
    async with puppets(workers=2, slots=SlotSettings(stall_after_s=0.4)) as (_, client):

        async def both_ready():
            return [worker["phase"] for worker in (await client.ask("status"))["workers"]] == ["ready", "ready"]

        await until(both_ready)
        blocked = asyncio.create_task(client.run(play("freeze:thaw")))

        async def begun(count):
            return len(runs()) >= count

        await until(lambda: begun(1))
        others = [asyncio.create_task(client.run(play("hold:go"), number)) for number in range(6)]
        await until(lambda: begun(7))
        assert not blocked.done()
        (tmp_path / "go").touch()
        traces = await asyncio.gather(*others)
        frozen = runs()[0][2]
        assert all(pid != frozen for task, _, pid in runs() if task == "hold:go")
        assert [trace.attempt for trace in traces] == list(range(6))
        (tmp_path / "thaw").touch()
        await blocked
        counts = (await client.ask("status"))["counts"]
        assert counts["taken_back"] >= 1
        assert counts["done"] == 7
        assert len(runs()) == 7
