"""Workers that nobody here started: they come, work, go, and come back, and nothing is lost or told twice."""

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager

import msgspec
import pytest
import zmq
from serve_tasks import play

from rollwright.serve import BrokerSettings, EnvClient, ServerLost, SlotSettings, serving
from rollwright.serve.joining import join
from rollwright.serve.launching import GUEST, WorkerOrder
from rollwright.serve.slots import MAX_GUESTS, Phase, Slots
from rollwright.serve.worker import Worker


class IdleHost:
    """Nothing to serve, and nothing wrong."""

    async def probe(self):
        return

    def vitals(self):
        return {}

    def tell_policy(self, version):
        return


@pytest.fixture
def house(tmp_path, puppets):
    """`async with house() as (server, client, guest)`: a server without workers of its own; `await guest()` starts one
    that joins, as a process."""

    @asynccontextmanager
    async def opened(*, address=""):
        settings = BrokerSettings(
            workers=0, capacity=8, host="served_hosts:puppet", options=json.dumps({"directory": str(tmp_path)})
        )
        guests = []
        async with serving(settings, address=address) as server:
            place = tmp_path / "server.json"
            place.write_text(server.address.encode())

            async def guest(*flags):
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "rollwright", "join", str(place), *flags, stderr=asyncio.subprocess.PIPE
                )
                guests.append(process)
                return process

            client = EnvClient(server.address)
            await client.connect()
            try:
                yield server, client, guest
            finally:
                await client.close()
                for process in guests:
                    if process.returncode is None:
                        process.kill()
                    await process.communicate()

    return opened


async def joined(client, count=1):
    """The ready workers, once they are so many."""
    async with asyncio.timeout(60):
        while True:
            workers = [one for one in (await client.ask("status"))["workers"] if one["phase"] == "ready"]
            if len(workers) == count and all("pid" in one["vitals"] for one in workers):
                return workers
            await asyncio.sleep(0.02)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def begun(server, runs, count=1):
    """A client with requests under way."""
    await until(lambda: len(runs()) >= count)


async def test_one_that_joins_is_proven_and_works_and_leaves_when_it_has_finished(house, runs):
    async with house(address="tcp://127.0.0.1:0") as (server, status, guest):
        process = await guest("--capacity", "3")
        (worker,) = await joined(status)
        assert worker["name"].startswith("joined worker ")
        async with EnvClient(server.address) as client:
            running = [asyncio.create_task(client.run(play("sleep:0.7"), number)) for number in range(5)]
            await begun(server, runs, 3)
            assert len(runs()) == 3
            process.terminate()
            async with asyncio.timeout(60):
                assert await process.wait() == 0
            # What it had not begun waits for another, and that one is asked for what is left.
            await guest()
            traces = await asyncio.gather(*running)
        assert sorted(trace.attempt for trace in traces) == [0, 1, 2, 3, 4]
        found = await status.ask("status")
        assert found["counts"].get("redispatched", 0) == 0
        assert [one["what"] for one in found["happenings"]][:2] == ["ready", "left"]


async def test_one_that_dies_is_dropped_and_its_work_goes_to_another(house, runs):
    async with house() as (server, status, guest):
        first = await guest()
        await joined(status)
        async with EnvClient(server.address) as client:
            running = [asyncio.create_task(client.run(play("sleep:0.5"), number)) for number in range(4)]
            await begun(server, runs, 4)
            await guest()
            await joined(status, 2)
            first.kill()
            traces = await asyncio.gather(*running)
            assert sorted(trace.attempt for trace in traces) == [0, 1, 2, 3]
        (worker,) = await joined(status)
        assert worker["vitals"]["pid"] != first.pid


async def test_one_that_was_given_up_wakes_up_and_arrives_anew(house, runs):
    async with house() as (server, status, guest):
        process = await guest()
        (before,) = await joined(status)
        async with EnvClient(server.address) as client:
            running = asyncio.create_task(client.run(play("sleep:0.4")))
            await begun(server, runs)
            os.kill(process.pid, signal.SIGSTOP)
            async with asyncio.timeout(60):
                while (await status.ask("status"))["workers"]:
                    await asyncio.sleep(0.02)
            os.kill(process.pid, signal.SIGCONT)
            assert (await running).attempt == 0
        (after,) = await joined(status)
        assert after["life"] != before["life"]
        assert after["vitals"]["pid"] == process.pid
        counts = (await status.ask("status"))["counts"]
        assert (counts["done"], counts["redispatched"]) == (1, 1)


async def test_it_finds_a_broker_that_was_born_again(house, runs):
    async with house(address="tcp://127.0.0.1:0") as (server, status, guest):
        await guest()
        await joined(status)
        async with EnvClient(server.address) as client:
            running = asyncio.create_task(client.run(play("sleep:0.4")))
            await begun(server, runs)
            os.kill(server.broker_pid, signal.SIGKILL)
            assert (await running).attempt == 0
        assert server.restarts == 1
        assert len(await joined(status)) == 1


async def test_an_order_to_leave_that_comes_before_it_has_arrived_is_kept(house):
    async with house() as (server, status, _):
        order = WorkerOrder(GUEST, 7, server.address.encode(), "served_hosts:puppet", "{}", 1)
        context = zmq.Context()
        worker = Worker(order, IdleHost(), context)
        worker.leave()
        async with asyncio.timeout(60):
            assert await worker.serve()
        assert not worker.refused
        assert [one["phase"] for one in (await status.ask("status"))["workers"]] in ([], ["leaving"])
        await asyncio.to_thread(context.destroy, 2000)


async def test_a_stranger_is_turned_away_at_once(house):
    async with house() as (server, _, _):
        wrong = msgspec.structs.replace(server.address, token="guess")
        with pytest.raises(ServerLost, match="turned us away"):
            await join(wrong, patience_s=60.0)


async def test_patience_ends(house, tmp_path):
    async with house() as (server, _, _):
        gone = msgspec.structs.replace(server.address, front=f"ipc://{tmp_path}/nobody")
    with pytest.raises(ServerLost, match="nobody answers"):
        await join(gone, patience_s=0.1)


def test_guests_have_no_slot_and_there_is_a_bound_to_them():
    slots = Slots(1, SlotSettings(), 0.0)
    life = slots.joined(7, 3, 0.0)
    assert (life.phase, life.capacity, life.name) == (Phase.STARTING, 3, "joined worker 7")
    assert slots.joined(7, 3, 0.0) is None
    assert slots.joined(8, 0, 0.0) is None
    assert [one.slot for one in slots.due(0.0)] == [0]
    assert slots.scale(0, 0.0) != [life]
    slots.buried(life, "its line broke", 1.0)
    for number in range(MAX_GUESTS):
        assert slots.joined(number, 1, 2.0) is not None
    assert slots.joined(MAX_GUESTS, 1, 2.0) is None


def test_no_worker_is_started_that_there_is_no_room_for():
    slots = Slots(3, SlotSettings(), 0.0)
    assert slots.due(0.0, 0) == []
    assert [life.slot for life in slots.due(0.0, 2)] == [0, 1]
    assert [life.slot for life in slots.due(500.0, 5)] == [2]
