"""The process that wants a server: what it remembers for its broker, what it forgives, and when it gives up."""

import asyncio
import logging
import os
import signal
import socket

import pytest
from serve_tasks import play

from rollwright.serve import SlotSettings
from rollwright.wire import UsageError


async def until(condition):
    async with asyncio.timeout(60):
        while not (found := await condition()):
            await asyncio.sleep(0.02)
    return found


async def ready(client, count):
    return [w for w in (await client.ask("status"))["workers"] if w["phase"] == "ready"][count - 1 :]


async def test_a_broker_that_is_born_again_has_as_many_workers_as_somebody_wanted(puppets):
    async with puppets(workers=1) as (server, client):
        assert (await client.ask("scale", "2"))["wanted"] == 2
        # At once: whoever was told that it is so need not wait for it to be true of the next one too.
        os.kill(server.broker_pid, signal.SIGKILL)
        await client.run(play("plain"))
        status = await client.ask("status")
        assert (server.restarts, status["wanted"]) == (1, 2)
        assert {worker["slot"] for worker in status["workers"]} == {0, 1}


async def kill_broker(server):
    """Returns when the next one has been seen, or nobody looks any more."""
    before = server.restarts
    os.kill(server.broker_pid, signal.SIGKILL)

    async def started():
        return server.restarts > before or server.failure

    await until(started)
    seen = server.seen

    async def looked():
        return server.seen is not seen or server.failure

    await until(looked)


@pytest.mark.parametrize("health_s", [0.0, 1000.0])
async def test_health_clears_the_record_of_the_broker(puppets, health_s):
    async with puppets(slots=SlotSettings(health_s=health_s), max_restarts=1) as (server, _):
        await kill_broker(server)
        assert (server.restarts, server.failure) == (1, "")
        await kill_broker(server)
        if health_s:
            assert server.failure.startswith("the broker died (exit code -9)")
            assert server.failure.endswith("it was started again 1 times in a row")
        else:
            assert (server.restarts, server.failure) == (2, "")


async def test_a_spent_restart_budget_is_the_end_of_the_server(puppets, caplog):
    slots = SlotSettings(max_restarts=0)
    async with puppets(slots=slots) as (server, client):
        with pytest.raises(Exception, match="died 1 times in a row"):
            await client.run(play("poison"))
        async with asyncio.timeout(20):
            await server.until_over()
        assert server.failure == (await client.ask("status"))["failing"] != ""
        assert "SIGKILL" in server.failure
    said = "\n".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert "worker 0.1 is dead: it was ended by SIGKILL" in said


async def test_a_worker_that_still_leaves_is_not_taken_for_its_successor(puppets, runs, tmp_path):
    async with puppets(workers=2, capacity=1) as (_, client):
        await until(lambda: ready(client, 2))
        held = [asyncio.create_task(client.run(play("hold:go"), n, timeout_s=60)) for n in range(2)]

        async def begun():
            return len(runs()) == 2

        await until(begun)
        (old,) = [w for w in (await client.ask("status"))["workers"] if w["slot"] == 1]
        await client.ask("scale", "1")
        await client.ask("scale", "2")
        await until(lambda: ready(client, 2))
        found = {w["life"]: w for w in (await client.ask("status"))["workers"] if w["slot"] == 1}
        assert len(found) == 2
        assert found[old["life"]]["phase"] == "leaving"
        (new,) = [w for w in found.values() if w["life"] != old["life"]]

        async def told_apart():
            pids = {w["life"]: w["vitals"].get("pid") for w in (await client.ask("status"))["workers"]}
            return pids if len({*pids.values()} - {None}) == 3 else None

        pids = await until(told_apart)
        os.kill(int(pids[old["life"]]), signal.SIGKILL)

        async def redispatched():
            return (await client.ask("status"))["counts"].get("redispatched", 0) == 1

        await until(redispatched)
        (tmp_path / "go").touch()
        assert sorted(trace.attempt for trace in await asyncio.gather(*held)) == [0, 1]
        assert new["life"] in {w["life"] for w in (await client.ask("status"))["workers"]}


async def test_a_port_that_is_taken_is_a_wrong_command(puppets):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"nobody can listen at tcp://127.0.0.1:{port}: Address already in use;"):
            async with puppets(address=f"tcp://127.0.0.1:{min(port, 65533)}"):
                pass
