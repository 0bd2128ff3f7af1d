"""Faults, as a client meets them."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from engines.scripted.scripted_client import Answered, says, served, until
from rollwright.engines.scripted import Fault, ScriptedConfig
from rollwright.engines.scripted.config import Fault as Kind
from rollwright.engines.scripted.faults import FaultPlan
from rollwright.wire import ModelCall, WireError, assistant, user

in_dialects = pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
ANSWER = "a long answer in many pieces, " * 5


def scripted(*faults, **fields):
    return ScriptedConfig(fault_script=faults, chunk_chars=10, **fields)


def call(stream):
    return ModelCall("m", (user("go"),), stream=stream)


@in_dialects
@both_ways
@pytest.mark.parametrize(("fault", "status"), [(Fault.RATE_LIMIT, 429), (Fault.SERVER_ERROR, 500)])
async def test_errors_before_the_answer(dialect, stream, fault, status):
    async with served(scripted(fault, retry_after_s=0.25), says(ANSWER)) as (server, client):
        with pytest.raises(Answered, match="as the script says") as caught:
            await client.ask(call(stream), dialect)
        assert caught.value.status == status
        assert caught.value.headers.get("Retry-After") == ("0.25" if status == 429 else None)
        assert (await client.ask(call(stream), dialect)).message == assistant(ANSWER)
        assert server.stats.faults == {fault: 1}
        assert [(entry.fault, entry.reply is None) for entry in server.log] == [(fault, True), (Fault.NONE, False)]


@in_dialects
@both_ways
async def test_a_cut_answer_is_noticed(dialect, stream):
    async with served(scripted(Fault.CUT_STREAM), says(ANSWER)) as (server, client):
        with pytest.raises(aiohttp.ClientPayloadError):
            await client.ask(call(stream), dialect)
        assert (await client.ask(call(stream), dialect)).message == assistant(ANSWER)
        assert (server.stats.served, server.stats.cancelled) == (1, 0)


async def test_a_cut_stream_brings_its_first_half():
    async with served(scripted(Fault.CUT_STREAM), says(ANSWER)) as (_, client):
        body = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "go"}]}'
        received = bytearray()

        async def receive(response):
            async for chunk in response.content.iter_any():
                received.extend(chunk)

        async with client.session.post(client.base_url + "/v1/chat/completions", data=body) as response:
            with pytest.raises(aiohttp.ClientPayloadError):
                await receive(response)
        assert b'"a long ans"' in received
        assert b"[DONE]" not in received


@in_dialects
@both_ways
async def test_malformed_json_does_not_parse(dialect, stream):
    async with served(scripted(Fault.MALFORMED_JSON), says(ANSWER)) as (server, client):
        with pytest.raises(WireError):
            await client.ask(call(stream), dialect)
        assert (await client.ask(call(stream), dialect)).message == assistant(ANSWER)
        assert server.stats.faults == {Fault.MALFORMED_JSON: 1}


@in_dialects
@both_ways
async def test_a_stall_holds_until_the_client_leaves(dialect, stream):
    async with served(scripted(Fault.STALL), says(ANSWER)) as (server, client):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.ask(call(stream), dialect)
        await until(lambda: server.stats.in_flight == 0)
        assert (server.stats.cancelled, server.stats.served) == (1, 0)
        assert (await client.ask(call(stream), dialect)).message == assistant(ANSWER)


@both_ways
async def test_a_stall_ends_at_its_deadline(stream):
    async with served(scripted(Fault.STALL, stall_s=0.01), says(ANSWER)) as (server, client):
        with pytest.raises(aiohttp.ClientError):
            await client.ask(call(stream))
        assert server.stats.cancelled == 0


def test_faults_come_with_their_probabilities_and_in_any_order_the_same():
    config = ScriptedConfig(faults={Kind.STALL: 0.1, Kind.RATE_LIMIT: 0.3}, fault_script=(Kind.CUT_STREAM,), seed=3)
    plan, again = FaultPlan(config), FaultPlan(config)
    assert plan.next(b"", 0) is again.next(b"", 0) is Kind.CUT_STREAM
    places = [(bytes([number]), came) for number in range(200) for came in range(5)]
    drawn = {place: plan.next(*place) for place in places}
    assert {place: again.next(*place) for place in reversed(places)} == drawn
    counts = [list(drawn.values()).count(kind) for kind in (Kind.STALL, Kind.RATE_LIMIT, Kind.NONE)]
    assert 60 < counts[0] < 140
    assert 240 < counts[1] < 360
    assert sum(counts) == 1000
