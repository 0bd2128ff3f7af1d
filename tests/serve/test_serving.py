"""A real broker, real workers, a real client: what is asked for comes back once, whoever dies meanwhile."""

import asyncio
import os
import signal
import stat
from contextlib import aclosing
from functools import partial
from pathlib import Path

import pytest
from serve_tasks import play

from rollwright.serve import EnvClient, ServerLost, SlotSettings, Trouble, Unserved
from rollwright.wire import UsageError

QUICK = SlotSettings(backoff_s=0.05, stall_after_s=0.4)


async def until(condition, timeout_s=20.0):
    async with asyncio.timeout(timeout_s):
        while not (
            found := await condition()
            if asyncio.iscoroutinefunction(getattr(condition, "func", condition))
            else condition()
        ):
            await asyncio.sleep(0.02)
    return found


def pid_of(trace):
    return int(trace.reply.split()[1]) if trace.reply else int(trace.messages[-1].text.split()[1])


async def workers(client):
    return (await client.ask("status"))["workers"]


async def test_rollouts_and_groups_come_back(puppets, runs):
    async with puppets(workers=2) as (_, client):
        trace = await client.run(play("plain"), 4)
        assert (trace.task_id, trace.attempt) == ("plain", 4)
        seen = []
        group = await client.run_group(play("scored"), 3, first_attempt=5, on_trace=seen.append)
        assert [trace.attempt for trace in group] == [5, 6, 7]
        assert [trace.reward for trace in group] == [0, 1, 2]
        assert [trace.reward for trace in seen] == [0, 0, 0]
        assert len({pid_of(trace) for trace in group}) == 1
        large = await client.run(play("large:8"))
        assert (large.calls[0].tokens.ids[-3:] == [2**21 - 3, 2**21 - 2, 2**21 - 1]).all()
    assert len(runs()) == 5


async def test_a_group_is_streamed_as_it_finishes(puppets):
    async with puppets() as (_, client), aclosing(client.stream_group(play("plain"), 3)) as traces:
        assert [trace.attempt async for trace in traces] == [0, 1, 2]


async def test_an_error_of_the_host_is_told_and_ends_nothing_else(puppets):
    async with puppets() as (_, client):
        neighbour = asyncio.create_task(client.run(play("sleep:0.3")))
        with pytest.raises(Unserved, match="ValueError: no such thing") as caught:
            await client.run(play("broken"))
        assert caught.value.trouble is Trouble.BROKE
        assert (await neighbour).task_id == "sleep:0.3"


async def test_a_killed_worker_loses_nothing(puppets, runs, tmp_path):
    async with puppets(workers=2, slots=QUICK) as (_, client):
        waiting = [asyncio.create_task(client.run(play("hold:go"), n)) for n in range(10)]
        await until(lambda: len(runs()) == 10)
        victim = int(runs()[0][2])
        os.kill(victim, signal.SIGKILL)
        (tmp_path / "go").touch()
        traces = await asyncio.gather(*waiting)
        assert sorted(trace.attempt for trace in traces) == list(range(10))
        assert all(pid_of(trace) != victim for trace in traces)
        counts = (await client.ask("status"))["counts"]
        assert counts["redispatched"] == len(runs()) - 10 > 0
        assert counts["done"] == 10


async def test_a_stopped_worker_is_dead_and_wakes_up_to_nothing(puppets, runs):
    async with puppets(slots=QUICK) as (_, client):
        waiting = asyncio.create_task(client.run(play("sleep:0.3")))
        await until(runs)
        os.kill(int(runs()[0][2]), signal.SIGSTOP)
        assert pid_of(await waiting) != int(runs()[0][2])


async def test_a_request_that_kills_is_given_up_and_the_others_go_on(puppets, runs):
    async with puppets(slots=QUICK) as (_, client):
        with pytest.raises(Unserved, match="poison was held by 3 workers") as caught:
            await client.run(play("poison"))
        assert caught.value.trouble is Trouble.POISON
        assert len(runs()) == 3
        assert (await client.run(play("plain"))).task_id == "plain"


async def test_what_arrived_before_a_death_is_not_run_again(puppets, runs, tmp_path):
    def mark(trace):
        (tmp_path / f"seen-{trace.attempt}").touch()

    async with puppets(slots=QUICK) as (_, client):
        group = await client.run_group(play("once:a"), 3, on_trace=mark)
        assert [trace.attempt for trace in group] == [0, 1, 2]
        assert [attempt for _, attempt, _ in runs()] == ["0", "1", "2", "2"]


async def test_a_stalled_worker_is_named_and_spared(puppets, runs):
    async with puppets(workers=2, slots=QUICK) as (_, client):
        blocked = asyncio.create_task(client.run(play("block:2")))
        await until(runs)

        async def stalled():
            return [worker for worker in await workers(client) if worker["phase"] == "stalled"]

        (found,) = await until(stalled)
        assert "_act" in found["stack"]
        assert (await client.run(play("plain"))).task_id == "plain"
        assert pid_of(await blocked) == int(runs()[0][2])


@pytest.mark.soak
async def test_a_loop_blocked_for_a_minute_is_named_and_spared_and_its_neighbours_go_on(puppets, runs):
    async with puppets(workers=2, slots=SlotSettings(stall_limit_s=90.0)) as (_, client):

        async def both_ready():
            return [worker["phase"] for worker in await workers(client)] == ["ready", "ready"]

        await until(both_ready)
        blocked = asyncio.create_task(client.run(play("block:60")))
        await until(runs)
        done = 0
        while not blocked.done():
            assert (await client.run(play("sleep:0.5"), timeout_s=30)).task_id == "sleep:0.5"
            done += 1
            if done == 20:
                (found,) = [worker for worker in await workers(client) if worker["phase"] == "stalled"]
                assert "in PuppetHost._act" in found["stack"]
        assert done > 20
        assert pid_of(await blocked) == int(runs()[0][2])
        assert {worker["life"] for worker in await workers(client)} == {1, 2}


async def test_a_loop_that_stands_still_past_the_limit_is_ended(puppets, runs):
    slots = SlotSettings(backoff_s=0.05, stall_after_s=0.2, stall_limit_s=0.8)
    async with puppets(slots=slots, redispatches=0) as (_, client):
        with pytest.raises(Unserved, match=r"its loop stood still(.|\n)*_act"):
            await client.run(play("block:60"))


async def test_a_call_that_holds_the_interpreter_is_a_stall_too(puppets, runs):
    async with puppets(slots=QUICK) as (_, client):
        trace = await client.run(play("spin:3"))
        assert pid_of(trace) == int(runs()[0][2])
        assert len(runs()) == 1


async def test_cancelling_reaches_the_worker(puppets, runs, tmp_path):
    async with puppets() as (_, client):
        waiting = asyncio.create_task(client.run(play("sleep:60")))
        await until(runs)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: list(tmp_path.glob("cancelled-*")))
        assert (await client.ask("status"))["requests"] == 0


async def test_cancelling_reaches_the_engine(puppets, tmp_path):
    async with puppets(host="served_environments:stuck") as (_, client):
        for ending in ("cancel", "deadline"):
            for name in ("asked", "let-go"):
                (tmp_path / name).unlink(missing_ok=True)
            running = client.run_group(play("plain"), 2, timeout_s=60 if ending == "cancel" else 0.5)
            waiting = asyncio.create_task(running)
            await until((tmp_path / "asked").exists)
            if ending == "cancel":
                waiting.cancel()
            with pytest.raises((asyncio.CancelledError, Unserved)):
                await waiting
            await until((tmp_path / "let-go").exists)
        told = await until(partial(idle_vitals, client))
        assert {"rollouts", "requests", "queued", "done", "failed", "rss_mb", "descriptors"} <= set(told)
        assert {"lag_p99_ms", "lag_ticks", "lag_le_15.62_ms", "image_bytes", "image_budget_bytes"} <= set(told)


async def idle_vitals(client):
    """What the worker tells of itself once it holds nothing."""
    (worker,) = await workers(client)
    return worker["vitals"] if worker["vitals"].get("rollouts") == 0 else None


async def test_a_deadline_ends_the_work_too(puppets, tmp_path):
    async with puppets() as (_, client):
        with pytest.raises(Unserved, match=r"took longer|TimeoutError") as caught:
            await client.run(play("sleep:60"), timeout_s=0.3)
        assert caught.value.trouble is Trouble.TIMED_OUT
        await until(lambda: list(tmp_path.glob("cancelled-*")))


async def test_a_client_waits_for_room_that_others_take(puppets, runs, tmp_path):
    async with puppets(queue=2, capacity=1) as (server, client), EnvClient(server.address) as guest:
        waiting = [asyncio.create_task(client.run(play("hold:go"), n)) for n in range(3)]

        async def full():
            return (await client.ask("status"))["queued_rollouts"] == 2

        await until(full)
        late = asyncio.create_task(guest.run(play("plain")))

        async def refused():
            return (await client.ask("status"))["counts"].get("refused")

        await until(refused)
        assert not late.done()
        (tmp_path / "go").touch()
        assert [trace.attempt for trace in await asyncio.gather(*waiting)] == [0, 1, 2]
        assert (await late).task_id == "plain"


async def test_closing_the_client_fails_what_is_pending(puppets, runs):
    async with puppets() as (_, client):
        waiting = asyncio.create_task(client.run(play("sleep:60")))
        await until(runs)
        await client.close()
        with pytest.raises(ServerLost, match="the client was closed"):
            await waiting


async def test_a_client_that_leaves_takes_its_work_along(puppets, runs, tmp_path):
    async with puppets() as (server, client):
        async with EnvClient(server.address) as guest:
            waiting = asyncio.create_task(guest.run(play("sleep:60")))
            await until(runs)
            await guest.close()
            with pytest.raises(ServerLost):
                await waiting
        await until(lambda: list(tmp_path.glob("cancelled-*")))
        assert (await client.ask("status"))["requests"] == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_dead_broker_is_replaced_and_nothing_is_lost(puppets, runs, how):
    async with puppets(workers=1) as (server, client):
        waiting = [asyncio.create_task(client.run(play("sleep:0.5"), n)) for n in range(4)]
        await until(lambda: len(runs()) == 4)
        os.kill(server.broker_pid, how)
        traces = await asyncio.gather(*waiting)
        assert sorted(trace.attempt for trace in traces) == [0, 1, 2, 3]
        assert server.restarts == 1
        old = int(runs()[0][2])
        await until(lambda: not Path(f"/proc/{old}").exists())


async def test_workers_that_cannot_start_end_the_run_with_their_last_words(puppets):
    slots = SlotSettings(max_restarts=1, backoff_s=0.05)
    with pytest.raises(ServerLost, match=r"died 2 times in a row(.|\n)*the environment cannot be opened"):
        async with puppets(host="broken", slots=slots):
            pass


async def test_a_spent_restart_budget_is_a_typed_error_and_no_wait(puppets):
    slots = SlotSettings(max_restarts=1, backoff_s=0.05)
    async with puppets(slots=slots, redispatches=10) as (_, client):
        with pytest.raises(ServerLost, match="died 2 times in a row"):
            await client.run(play("poison"))
        with pytest.raises(ServerLost, match="died 2 times"):
            await client.run(play("plain"))


async def test_a_worker_that_grew_is_replaced_and_finishes_first(puppets, runs):
    async with puppets(slots=SlotSettings(memory_mb=250)) as (_, client):
        first = pid_of(await client.run(play("plain")))
        slow = asyncio.create_task(client.run(play("sleep:1.5")))
        await client.run(play("grow:260"))

        async def replaced():
            return [worker for worker in await workers(client) if worker["life"] == 2 and worker["phase"] == "ready"]

        await until(replaced)
        assert pid_of(await slow) == first
        assert pid_of(await client.run(play("plain"))) != first
        assert (await client.ask("status"))["counts"].get("redispatched", 0) == 0


async def test_scaling_up_and_down(puppets):
    async with puppets(workers=1) as (_, client):
        await client.ask("scale", "3")

        async def ready(count):
            return len([worker for worker in await workers(client) if worker["phase"] == "ready"]) == count

        await until_async(ready, 3)
        await client.ask("scale", "1")
        await until_async(ready, 1)

        async def alone():
            return len(await workers(client)) == 1

        await until_async(alone)
        with pytest.raises(Unserved, match="scale takes a number"):
            await client.ask("scale", "many")
        with pytest.raises(Unserved, match="has no order 'stats'; did you mean 'status'"):
            await client.ask("stats")


async def until_async(condition, *args):
    async with asyncio.timeout(20):
        while not await condition(*args):
            await asyncio.sleep(0.02)


async def test_draining_replaces_without_losing(puppets, runs):
    async with puppets() as (_, client):
        slow = asyncio.create_task(client.run(play("sleep:0.5")))
        await until(runs)
        await client.ask("drain")
        after = await client.run(play("plain"))
        assert pid_of(after) != pid_of(await slow)


async def test_sockets_are_files_that_only_we_may_open(puppets):
    async with puppets() as (server, _):
        path = Path(server.address.front.removeprefix("ipc://"))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.parent.exists()


async def test_over_tcp_a_stranger_is_turned_away(puppets):
    import msgspec

    async with puppets(address="tcp://127.0.0.1:0") as (server, client):
        assert (await client.run(play("plain"))).task_id == "plain"
        assert server.address.server_key
        for wrong in ({"token": "guess"}, {"server_key": "x" * 40}):
            stranger = EnvClient(msgspec.structs.replace(server.address, **wrong), ready_timeout_s=1.0)
            with pytest.raises(ServerLost, match=r"the token is not this server's|nobody answers"):
                await stranger.__aenter__()
        assert (await client.run(play("plain"))).task_id == "plain"


async def test_an_address_that_is_none_says_what_one_is(puppets):
    with pytest.raises(UsageError, match="tcp://HOST:PORT"):
        async with puppets(address="localhost"):
            pass
    with pytest.raises(UsageError, match="rollwright serve"):
        EnvClient("nonsense")
