"""Law 14: bodies have a size and a deadline, all of them together a budget, rollouts so many requests at once."""

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.dialects import DIALECTS
from rollwright.harnesses import Limits
from rollwright.intercept import InterceptConfig
from rollwright.intercept.bodies import ByteBudget
from rollwright.wire import Stop, UsageError

from .doors import rigged, until


def head(rig, *lines, path="/v1/chat/completions", key=None):
    fields = [f"POST {path} HTTP/1.1", "host: x", f"authorization: Bearer {key or rig.door.key}", *lines]
    return "\r\n".join([*fields, "", ""]).encode()


async def raw(rig, *pieces, within_s=10):
    """What the server answers to bytes, up to its hanging up or to the end of one answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.interceptor.port)
    try:
        async with asyncio.timeout(within_s):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            status = int((await reader.readline()).split()[1])
            fields = {}
            while line := (await reader.readline()).strip():
                name, _, value = line.decode("latin-1").partition(":")
                fields[name.lower()] = value.strip()
            return status, fields, await reader.readexactly(int(fields["content-length"]))
    finally:
        writer.close()


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
async def test_a_body_that_says_it_is_too_long_is_refused_before_it_is_read(dialect):
    async with rigged() as rig:
        asking = head(rig, f"content-length: {2**30}", path=DIALECTS[dialect].path)
        status, fields, body = await raw(rig, asking)
        assert status == 413
        assert fields["connection"] == "close"
        assert "limit" in DIALECTS[dialect].read_error(413, body)
        assert not rig.engine.calls


async def test_a_body_that_does_not_say_how_long_it_is_is_cut_off():
    async with rigged(config=InterceptConfig(max_body_bytes=100_000)) as rig:
        chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
        status, _, _ = await raw(rig, head(rig, "transfer-encoding: chunked"), *[chunk] * 8)
        assert status == 413
        assert rig.interceptor._bodies.budget.held == 0


async def test_a_body_that_trickles_in_is_given_up():
    async with rigged(config=InterceptConfig(body_timeout_s=0.1)) as rig:
        status, fields, body = await raw(rig, head(rig, "content-length: 1000"), b'{"model":')
        assert (status, fields["connection"]) == (408, "close")
        assert "did not arrive" in DIALECTS["chat"].read_error(408, body)
        assert rig.admission.requests == 0


async def test_headers_that_trickle_in_are_given_up():
    async with rigged(config=InterceptConfig(idle_timeout_s=0.1)) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.interceptor.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost:")
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


async def test_bytes_of_all_rollouts_have_a_budget_and_wait_their_turn():
    config = InterceptConfig(max_bytes_in_flight=1000, budget_timeout_s=30)
    async with rigged(config=config) as rig:
        budget = rig.interceptor._bodies.budget
        rig.engine.say("first")
        rig.engine.say("second")
        body = b'{"model":"m","messages":[{"role":"user","content":"go"}]}'
        body += b" " * (900 - len(body))
        lines = head(rig, "content-length: 900")
        (one, to_one), (two, to_two) = [
            await asyncio.open_connection("127.0.0.1", rig.interceptor.port) for _ in range(2)
        ]
        to_one.write(lines + body[:10])
        await until(lambda: budget.held == 900)
        to_two.write(lines + body[:10])
        await until(lambda: "1 waiting" in repr(budget))
        to_two.write(body[10:])
        to_one.write(body[10:])
        for reader, writer in ((one, to_one), (two, to_two)):
            assert (await reader.readline()).split()[1] == b"200"
            writer.close()
        assert repr(budget) == "<ByteBudget 0 of 1000 held, 0 waiting>"


async def test_whoever_waits_too_long_for_the_budget_is_told_to_come_back():
    config = InterceptConfig(max_bytes_in_flight=1000, budget_timeout_s=0.05)
    async with rigged(config=config) as rig:
        slow = await asyncio.open_connection("127.0.0.1", rig.interceptor.port)
        slow[1].write(head(rig, "content-length: 900") + b"{")
        await until(lambda: rig.interceptor._bodies.budget.held == 900)
        status, fields, _ = await raw(rig, head(rig, "content-length: 900"), b"{")
        assert (status, fields["retry-after"]) == (503, "1")
        slow[1].close()
        await until(lambda: rig.interceptor._bodies.budget.held == 0)


async def test_one_rollout_has_so_many_requests_at_once():
    async with rigged(config=InterceptConfig(max_open_calls=2)) as rig:
        open_ones = [asyncio.ensure_future(_status(rig.post(str(number)))) for number in range(2)]
        await until(lambda: len(rig.engine.calls) == 2)
        async with rig.post("one too many") as answer:
            assert answer.status == 429
            assert answer.headers["retry-after"] == "1"
        rig.engine.say("a")
        rig.engine.say("b")
        assert await asyncio.gather(*open_ones) == [200, 200]


async def _status(asking):
    async with asking as answer:
        await answer.read()
        return answer.status


async def test_there_are_so_many_connections():
    async with rigged(config=InterceptConfig(max_connections=3)) as rig:
        lines = [await asyncio.open_connection("127.0.0.1", rig.interceptor.port) for _ in range(3)]
        await until(lambda: len(rig.interceptor._runner.server.connections) == 3)
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.interceptor.port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        for _, one in [*lines, (reader, writer)]:
            one.close()
        assert rig.interceptor._runner.server.turned_away == 1


async def test_a_client_that_wants_to_be_asked_on_is():
    async with rigged() as rig:
        rig.engine.say("fine")
        body = b'{"model":"m","messages":[{"role":"user","content":"go"}]}'
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.interceptor.port)
        writer.write(head(rig, f"content-length: {len(body)}", "expect: 100-continue"))
        assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
        await reader.readline()
        writer.write(body)
        assert (await reader.readline()).split()[1] == b"200"
        writer.close()


async def test_parallel_calls_do_not_overrun_the_turns():
    async with rigged(limits=Limits(max_turns=2)) as rig:
        asking = [asyncio.ensure_future(_status(rig.post(str(number), stream=False))) for number in range(5)]
        await until(lambda: len(rig.engine.calls) == 2 and sum(one.done() for one in asking) == 3)
        rig.engine.say("a")
        rig.engine.say("b")
        assert sorted(await asyncio.gather(*asking)) == [200, 200, 400, 400, 400]
    assert (rig.trace.turns, rig.session.stopped) == (2, Stop.TURNS_SPENT)


@pytest.mark.parametrize(
    ("name", "value"), [("max_body_bytes", 0), ("keepalive_s", -1.0), ("budget_timeout_s", float("nan"))]
)
def test_a_bound_that_bounds_nothing_is_refused(name, value):
    with pytest.raises(UsageError, match=name):
        InterceptConfig(**{name: value})


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans(), st.integers(0, 3)), max_size=30))
def test_a_budget_is_never_overdrawn_and_never_lost(steps):
    async def main():
        budget, holding, waiting = ByteBudget(40), [], []

        async def take(amount):
            await budget.take(amount, 5)
            holding.append(amount)

        for amount, cancels, frees in steps:
            waiting.append(asyncio.ensure_future(take(amount)))
            await asyncio.sleep(0)
            if cancels:
                waiting[len(steps) % len(waiting)].cancel()
            for _ in range(min(frees, len(holding))):
                budget.give_back(holding.pop())
            await asyncio.sleep(0)
            assert 0 <= budget.held <= 40
        while any(not one.done() for one in waiting):
            for _ in range(len(holding)):
                budget.give_back(holding.pop())
            await asyncio.sleep(0)
        for _ in range(len(holding)):
            budget.give_back(holding.pop())
        assert repr(budget) == "<ByteBudget 0 of 40 held, 0 waiting>"

    asyncio.run(main())
