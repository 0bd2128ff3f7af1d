"""Garbage on every socket: it is answered or ignored, and nobody else notices."""

import asyncio
import contextlib
import random

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from serve_tasks import play

from rollwright.serve.bundles import Bundle, open_bundle
from rollwright.serve.protocol import (
    VERSION,
    FromClient,
    FromWorker,
    Hello,
    Job,
    Part,
    Refusal,
    Refused,
    Run,
    Submit,
    Tick,
    ToClient,
    ToWorker,
    pack,
    unpack,
)
from rollwright.serve.wiring import connected
from rollwright.wire import WireError
from rollwright.wire.codec import encode

ENVELOPES = [
    Hello(1, "t"),
    Submit(1, 2, "l", 3.0, "b", together=True),
    Part(1, 2),
    Run(3, 4.0, (1, 2)),
    Refused(Refusal.UNREADABLE, "no"),
]


@given(st.binary(max_size=300), st.sampled_from([FromClient, ToClient, ToWorker, FromWorker]))
def test_bytes_are_an_envelope_or_a_wire_error(data, kind):
    try:
        envelope = unpack(data, kind)
    except WireError:
        return
    assert unpack(pack(envelope), kind) == envelope


@given(st.sampled_from(ENVELOPES), st.integers(0, 200), st.integers(0, 255))
def test_a_damaged_envelope_never_escapes_as_another_error(envelope, place, byte):
    data = bytearray(pack(envelope))
    data[place % len(data)] = byte
    for kind in (FromClient, ToClient, ToWorker, FromWorker):
        with contextlib.suppress(WireError):
            unpack(bytes(data), kind)


def bundled(*messages):
    bundle = Bundle()
    for envelope, frames in messages:
        bundle.add(envelope, frames)
    return bundle.take()


def heard(socket, kind=ToClient):
    return [said for said, _ in open_bundle(socket.recv_multipart(copy=False), kind) if not isinstance(said, Tick)]


def garbage(seed):
    dice = random.Random(seed)
    whole = [bundled((envelope, [])) for envelope in ENVELOPES]
    for _ in range(200):
        frames = [dice.randbytes(dice.randrange(80)) for _ in range(dice.randrange(1, 5))]
        if dice.random() < 0.5:
            frames[0] = dice.choice(whole)[0]
        yield frames
    yield [b"\xc1" * 100_000]
    yield [msgspec.msgpack.encode([[["Submit", 1, -5, "x", float("nan"), "b"], []]])]
    yield [b""]


@pytest.mark.parametrize("end", ["front", "back", "pulse"])
async def test_garbage_ends_neither_broker_nor_worker(puppets, end):
    async with puppets() as (server, client):
        context = zmq.Context()
        socket = connected(context, getattr(server.address, end), server.address, push=end == "pulse")
        try:
            for frames in garbage(end):
                socket.send_multipart(frames)
            trace = await client.run(play("plain"))
            assert trace.task_id == "plain"
            assert server.restarts == 0
            status = await client.ask("status")
            assert [worker["life"] for worker in status["workers"]] == [1]
            if end != "pulse":
                assert await asyncio.to_thread(socket.poll, 5000)
                answer = heard(socket, ToClient if end == "front" else ToWorker)[0]
                assert isinstance(answer, Refused)
                assert answer.kind in (Refusal.UNREADABLE, Refusal.STRANGER)
        finally:
            socket.close(linger=0)
            await asyncio.to_thread(context.term)


async def test_a_job_that_is_garbage_is_refused_by_name(puppets):
    async with puppets() as (server, client):
        context = zmq.Context()
        socket = connected(context, server.address.front, server.address)
        try:
            socket.send_multipart(bundled((Hello(VERSION, server.address.token), [])))
            (welcome,) = await asyncio.to_thread(heard, socket)
            junk = Submit(1, 1, "junk", 5.0, welcome.broker)
            socket.send_multipart(bundled((junk, [b"\xc1\xc1", b"junk"])))
            (answer,) = await asyncio.to_thread(heard, socket)
            assert (answer.request, answer.trouble.value) == (1, "refused")
            assert (await client.run(play("plain"))).task_id == "plain"
        finally:
            socket.close(linger=0)
            await asyncio.to_thread(context.term)


async def test_a_client_that_does_not_read_is_kept_waiting_and_loses_nothing(puppets):
    async with puppets(reply_bytes=8 * 2**20, capacity=2) as (server, client):
        context = zmq.Context()
        socket = connected(context, server.address.front, server.address)
        try:
            socket.send_multipart(bundled((Hello(VERSION, server.address.token), [])))
            (welcome,) = await asyncio.to_thread(heard, socket)
            for number in range(12):
                job = encode(Job("large:1", (number,)))
                socket.send_multipart(bundled((Submit(number, 1, "large", 60.0, welcome.broker), job)))
            status = await until_slow(client)
            # What was under way when the bound was passed still comes; nothing more is begun.
            assert 8 * 2**20 < status["unread_bytes"] < 16 * 2**20
            assert status["queued_requests"] > 0
            assert (await client.run(play("plain"))).task_id == "plain"
            came, read = set(), 0
            while len(came) < 12:
                frames = await asyncio.to_thread(socket.recv_multipart, copy=False)
                for said, carried in open_bundle(frames, ToClient):
                    if isinstance(said, Part):
                        came.add(said.request)
                        read += sum(len(frame) for frame in carried)
                socket.send_multipart(bundled((Tick(read), [])))
            assert came == set(range(12))
        finally:
            socket.close(linger=0)
            await asyncio.to_thread(context.term)


async def until_slow(client):
    async with asyncio.timeout(30):
        while (
            not (status := await client.ask("status"))["slow_clients"]
            or status["requests"] != status["queued_requests"]
        ):
            await asyncio.sleep(0.02)
    return status
