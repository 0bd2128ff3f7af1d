"""The host's end of a relay, with a stream that is played here: what is carried, what is bounded, and how it ends."""

import asyncio
import struct
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollwright.runtimes.remote import LinkBroken, Tunnel, tunnel
from rollwright.wire import RuntimeFault

HEAD = struct.Struct(">cII")
PATIENCE_S = 30


def frame(kind, number, data=b""):
    return HEAD.pack(kind, number, len(data)) + data


class Line:
    """The wire to a relay: what the box says comes from `said`, and what it is told is kept."""

    def __init__(self, *said):
        self.said = asyncio.Queue()
        self.heard = bytearray()
        self.deaf = False
        self.closed = False
        self.say(frame(b"p", 7000), *said)

    def say(self, *pieces):
        for piece in pieces:
            self.said.put_nowait(piece)

    async def read(self):
        return await self.said.get()

    async def write(self, data):
        await asyncio.sleep(0)
        if self.deaf:
            raise LinkBroken("nobody listens")
        self.heard += data

    async def ended(self):
        return b""

    async def close(self):
        self.closed = True

    def frames(self):
        at, found = 0, []
        while at < len(self.heard):
            kind, number, length = HEAD.unpack_from(self.heard, at)
            found.append((kind, number, bytes(self.heard[at + HEAD.size : at + HEAD.size + length])))
            at += HEAD.size + length
        return found


async def until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def carried(line, serve):
    """A tunnel to a server on loopback; at the end nothing of it is left."""
    ended = asyncio.Event()

    async def attend(reader, writer):
        try:
            await serve(reader, writer)
        finally:
            ended.set()
            writer.close()

    server = await asyncio.start_server(attend, "127.0.0.1", 0)
    async with server:
        made = Tunnel(line, server.sockets[0].getsockname()[1])
        assert await made.start() == 7000
        try:
            yield made, ended
        finally:
            await made.close()
            assert line.closed
            assert not made._tasks


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.binary(min_size=1, max_size=300)), max_size=12),
    st.lists(st.integers(1, 400), min_size=1, max_size=8),
)
def test_bytes_of_every_connection_arrive_in_order_wherever_the_stream_is_cut(words, cuts):
    async def main():
        stream = b"".join(frame(b"o", number) for number in (1, 2, 3))
        stream += b"".join(frame(b"d", number, data) for number, data in words)
        stream += b"".join(frame(b"e", number) for number in (1, 2, 3))
        line = Line()
        async with carried(line, echo):
            at = 0
            while at < len(stream):
                cut = cuts[at % len(cuts)]
                line.say(stream[at : at + cut])
                at += cut
            await until(lambda: sum(kind == b"e" for kind, _, _ in line.frames()) == 3)
        for number in (1, 2, 3):
            sent = b"".join(data for to, data in words if to == number)
            back = b"".join(data for kind, of, data in line.frames() if (kind, of) == (b"d", number))
            assert back == sent

    asyncio.run(main())


async def test_a_stream_that_takes_nothing_more_ends_every_connection():
    line = Line(frame(b"o", 1), frame(b"d", 1, b"hello"))
    async with carried(line, echo) as (made, ended):
        await until(lambda: line.frames() == [(b"d", 1, b"hello")])
        line.deaf = True
        line.say(frame(b"d", 1, b"again"))
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()
        assert made.broken


HALF, LIE = frame(b"d", 1, b"half of it")[:-1], HEAD.pack(b"d", 1, 2**32 - 1) + bytes(4096)


@pytest.mark.parametrize("last", [(b"",), (HALF, b""), (LIE,)])
async def test_a_stream_that_ends_or_lies_ends_every_connection(last):
    line = Line(frame(b"o", 1), frame(b"d", 1, b"hello"))
    async with carried(line, echo) as (made, ended):
        await until(lambda: line.frames() == [(b"d", 1, b"hello")])
        line.say(*last)
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()
        assert made.broken
        assert len(made._inbox) < 2**20


async def test_a_server_that_does_not_read_loses_its_connection_and_holds_up_nobody(monkeypatch):
    monkeypatch.setattr(tunnel, "_CONNECT_S", 0.05)
    first = asyncio.Event()

    async def serve(reader, writer):
        if not first.is_set():
            first.set()
            await asyncio.sleep(PATIENCE_S)
        await echo(reader, writer)

    line = Line(frame(b"o", 1))
    async with carried(line, serve) as (made, _):
        async with asyncio.timeout(PATIENCE_S):
            await first.wait()
        line.say(*[frame(b"d", 1, bytes(60_000))] * 200, frame(b"o", 2), frame(b"d", 2, b"hello"))
        await until(lambda: (b"d", 2, b"hello") in line.frames())
        await until(lambda: (b"e", 1, b"") in line.frames())
        assert set(made._writers) == {2}


async def test_a_box_has_so_many_connections(monkeypatch):
    monkeypatch.setattr(tunnel, "_CONNECTIONS", 2)
    line = Line(*[frame(b"o", number) for number in (1, 1, 2, 3)])
    async with carried(line, echo) as (made, _):
        await until(lambda: line.frames() == [(b"e", 3, b"")])
        assert set(made._writers) == {1, 2}


async def test_a_relay_that_says_nothing_sensible_is_none():
    line = Line()
    line.said = asyncio.Queue()
    line.say(b"Traceback (most recent call last)")
    with pytest.raises(RuntimeFault, match="relay"):
        await Tunnel(line, 1).start()
