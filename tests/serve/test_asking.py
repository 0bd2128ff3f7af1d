"""What a caller may do to its own requests, and what it is told at once."""

import asyncio
import os
import signal

import pytest
from serve_tasks import play
from test_serving import until

from rollwright.serve import Trouble, Unserved
from rollwright.wire import UsageError


class Spoiled(Exception):
    """A listener's own."""


def spoil(trace):
    raise Spoiled(trace.task_id)


async def test_a_listener_that_fails_ends_its_own_request_and_no_other(puppets):
    async with puppets() as (_, client):
        other = asyncio.create_task(client.run_group(play("plain"), 3))
        with pytest.raises(Spoiled, match="plain"):
            await client.run_group(play("plain"), 2, on_trace=spoil)
        assert len(await other) == 3

        async def idle():
            return (await client.ask("status"))["requests"] == 0

        await until(idle)


async def test_a_listener_may_cancel_its_own_request(puppets):
    troubles = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: troubles.append(context))
    async with puppets() as (_, client):
        asking = asyncio.create_task(client.run_group(play("plain"), 1, on_trace=lambda trace: asking.cancel()))
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert (await client.run(play("plain"))).task_id == "plain"
    assert troubles == []


async def test_what_can_never_be_let_in_is_refused_at_once(puppets):
    async with puppets(window=4) as (_, client):
        with pytest.raises(Unserved, match=r"8 rollouts and 4 may be here at once; raise the window") as refused:
            await client.run_group(play("plain"), 8, timeout_s=600.0)
        assert refused.value.trouble is Trouble.REFUSED
        assert len(await client.run_group(play("plain"), 4)) == 4


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan")])
async def test_a_deadline_lies_in_the_future(puppets, timeout_s):
    async with puppets() as (_, client):
        with pytest.raises(UsageError, match="timeout_s is"):
            await client.run(play("plain"), timeout_s=timeout_s)


async def test_a_rollout_that_was_cancelled_stays_so_when_the_broker_dies(puppets, runs, tmp_path):
    async with puppets() as (server, client):
        group = asyncio.create_task(client.run_group(play("hold:go"), 2))
        await until(runs)
        assert client.cancel_rollout(play("hold:go"), 1)
        assert not client.cancel_rollout(play("hold:go"), 2)
        (first,) = await until(lambda: list(tmp_path.glob("withdrawn-1-*")))
        os.kill(server.broker_pid, signal.SIGKILL)
        await until(lambda: set(tmp_path.glob("withdrawn-1-*")) - {first})
        (tmp_path / "go").touch()
        assert len(await group) == 2
