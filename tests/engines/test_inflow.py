"""Streams that are told within the callback that brings their bytes: where the bytes are cut, when the listener is full
and where it all breaks off change nothing of what was told before."""

import asyncio
from types import SimpleNamespace

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ears import Keeping
from engines.fake_endpoint import CALL, CHAT
from rollwright.engines.inflow import Conduit, Inflow, TooLong, whole_chunks
from rollwright.telemetry.loop import new_event_loop
from rollwright.wire import End, Finish, TextDelta, Usage, WireError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def pieces_of(words):
    writer = CHAT.stream_writer(CALL)
    return [writer.open(), *map(writer.write, [*map(TextDelta, words), End(Finish.STOP, Usage(3, 2), model="m")])]


class Pipe(asyncio.Transport):
    """A transport that only knows whether it is read from."""

    def __init__(self):
        super().__init__()
        self.paused = self.closed = False

    def pause_reading(self):
        self.paused = True

    def resume_reading(self):
        self.paused = False

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed


class Line:
    """A connection without a socket, over which one response comes."""

    def __init__(self):
        self.pipe = Pipe()
        self.conduit = Conduit(asyncio.get_running_loop())
        self.conduit.connection_made(self.pipe)
        self.conduit.set_response_params(read_until_eof=True, auto_decompress=True)

    def bring(self, *packets):
        for packet in packets:
            self.conduit.data_received(packet)

    async def inflow(self, ear, max_bytes=2**30):
        message, content = await self.conduit.read()
        connection = None if content.is_eof() else SimpleNamespace(protocol=self.conduit)
        response = SimpleNamespace(content=content, connection=connection, headers=message.headers)
        return Inflow(response, CHAT.stream_reader(), ear, max_bytes)


class Moody(Keeping):
    """Is full after some of the deltas, and free again when it is asked."""

    def __init__(self, moods):
        super().__init__()
        self.moods, self.waited = list(moods), 0

    def hear(self, delta):
        super().hear(delta)
        return not (self.moods and self.moods.pop())

    async def ready(self):
        self.waited += 1


def running(inflow, first_s=60.0, then_s=60.0, left_s=60.0):
    return asyncio.ensure_future(inflow.run(first_s, then_s, left_s))


def on_a_loop(test):
    """Run one example to its end, within a time."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(asyncio.wait_for(test, 20))


@st.composite
def cuts(draw, data):
    places = sorted(draw(st.sets(st.integers(1, len(data) - 1), max_size=8)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


WORDS = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=6)


@given(st.data(), WORDS)
@settings(max_examples=150)
def test_cuts_pauses_and_chunks_change_nothing(data, words):
    pieces = pieces_of(words)
    bodies = data.draw(cuts(b"".join(pieces))) if data.draw(st.booleans()) else pieces
    packets = [HEAD, *map(chunk, bodies), LAST]
    if data.draw(st.booleans()):
        packets = data.draw(cuts(b"".join(packets)))
    moods = data.draw(st.lists(st.booleans(), max_size=6))
    turns = data.draw(st.lists(st.booleans(), min_size=len(packets), max_size=len(packets)))

    async def example():
        line, ear, task = Line(), Moody(moods), None
        for packet, turn in zip(packets, turns, strict=True):
            line.bring(packet)
            if task is None and line.conduit._payload is not None and turn:
                task = running(await line.inflow(ear))
            if turn:
                await asyncio.sleep(0)
        end = await (task or running(await line.inflow(ear)))
        assert [*ear.events, end] == CHAT.stream_reader().feed(b"".join(pieces))
        assert not line.conduit.should_close, "the next call goes over the same connection"

    on_a_loop(example())


async def test_a_part_of_a_chunk_that_looks_like_a_chunk_is_a_part():
    """Its lines are fields of an event that no reader knows."""
    *pieces, last = pieces_of(["a", "b"])
    body = chunk(pieces[0] + b"5\r\nhello\r\n" + pieces[1])
    at = body.index(b"5\r\nhello")
    line, ear = Line(), Keeping()
    line.bring(HEAD)
    task = running(await line.inflow(ear))
    await asyncio.sleep(0)
    line.bring(body[:at], b"5\r\nhello\r\n", body[at + 10 :], chunk(pieces[2] + last), LAST)
    end = await asyncio.wait_for(task, 10)
    assert [*ear.events, end] == CHAT.stream_reader().feed(b"".join([*pieces, last]))


@given(st.data(), WORDS)
@settings(max_examples=60)
def test_a_stream_that_breaks_off_anywhere_is_told_up_to_there_and_fails(data, words):
    pieces = pieces_of(words)
    whole = b"".join(map(chunk, pieces))
    # The last event ends with the last chunk, whose own end the reader does not need.
    at = data.draw(st.integers(0, len(whole) - 3))
    packets = [HEAD, *data.draw(cuts(whole[:at]))] if at > 1 else [HEAD, whole[:at]]

    async def example():
        line, ear = Line(), Keeping()
        line.bring(packets[0])
        task = running(await line.inflow(ear))
        await asyncio.sleep(0)
        line.bring(*(packet for packet in packets[1:] if packet))
        line.conduit.connection_lost(data.draw(st.sampled_from([None, ConnectionResetError()])))
        with pytest.raises((aiohttp.ClientError, WireError, OSError)):
            await task
        all_events = CHAT.stream_reader().feed(b"".join(pieces))
        assert ear.events == all_events[: len(ear.events)]

    on_a_loop(example())


@pytest.mark.parametrize("before", range(5))
async def test_a_stream_that_is_cancelled_tells_nothing_more(before):
    line, ear = Line(), Keeping()
    packets = [chunk(piece) for piece in pieces_of(["a", "b", "c"])]
    line.bring(HEAD)
    task = running(await line.inflow(ear))
    await asyncio.sleep(0)
    line.bring(*packets[:before])
    task.cancel()
    heard = list(ear.events)
    line.bring(*packets[before:])
    # Cancelling is a request; once it has arrived, nothing is told.
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ear.events[: len(heard)] == heard
    told = len(ear.events)
    line.bring(chunk(pieces_of(["d"])[1]))
    assert len(ear.events) == told
    assert line.conduit.should_close, "what was not read to its end serves no other call"


async def test_a_listener_that_is_full_stops_the_socket():
    """Law 14: what comes for a listener that takes nothing is bounded, and is told when it is free."""
    free = asyncio.Event()

    class Full(Keeping):
        async def ready(self):
            await free.wait()

        def hear(self, delta):
            super().hear(delta)
            return free.is_set()

    line, ear, brought = Line(), Full(), 0
    line.bring(HEAD)
    task = running(await line.inflow(ear))
    await asyncio.sleep(0)
    packet = chunk(pieces_of(["x" * 1000])[1])
    while not line.pipe.paused and brought < 2**26:
        line.bring(packet)
        brought += len(packet)
    assert line.pipe.paused
    assert brought < 2**21
    assert len(ear.events) == 1
    free.set()
    async with asyncio.timeout(10):
        while len(ear.events) < brought // len(packet):
            await asyncio.sleep(0)
    assert not line.pipe.paused
    line.bring(*map(chunk, pieces_of(["y"])[1:]), LAST)
    assert isinstance(await task, End)
    assert ear.events[-1] == TextDelta("y")
    assert not line.conduit.should_close


@pytest.mark.parametrize(("first_s", "then_s", "left_s"), [(0.01, 60, 60), (60, 0.01, 60), (60, 60, 0.01)])
async def test_silence_ends_a_stream(first_s, then_s, left_s):
    line, ear = Line(), Keeping()
    line.bring(HEAD)
    task = running(await line.inflow(ear), first_s, then_s, left_s)
    await asyncio.sleep(0)
    if then_s < 1:
        line.bring(chunk(pieces_of(["a"])[1]))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(task, 10)
    assert len(ear.events) == (then_s < 1)


async def test_time_in_which_the_listener_is_full_is_not_silence():
    free = asyncio.Event()

    class Full(Moody):
        async def ready(self):
            await free.wait()

    line, ear = Line(), Full([True])
    line.bring(HEAD)
    task = running(await line.inflow(ear), 60, 0.01, 60)
    await asyncio.sleep(0)
    line.bring(*map(chunk, pieces_of(["a"])), LAST)
    done, _ = await asyncio.wait([task], timeout=0.05)
    assert not done
    free.set()
    assert isinstance(await asyncio.wait_for(task, 10), End)


async def test_a_stream_has_a_size():
    line, ear = Line(), Keeping()
    line.bring(HEAD)
    task = running(await line.inflow(ear, max_bytes=600))
    await asyncio.sleep(0)
    line.bring(*[chunk(pieces_of(["a" * 100])[1])] * 10)
    with pytest.raises(TooLong):
        await asyncio.wait_for(task, 10)
    assert len(ear.events) < 4


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=4), st.data())
def test_whole_chunks_are_told_from_all_else(bodies, data):
    packet = b"".join(map(chunk, bodies))
    assert whole_chunks(packet) == b"".join(bodies)
    assert whole_chunks(packet + LAST) is None
    borders = {len(b"".join(map(chunk, bodies[:count]))) for count in range(1, len(bodies) + 1)}
    at = data.draw(st.integers(0, len(packet) - 1).filter(lambda at: at not in borders))
    assert whole_chunks(packet[:at]) is None


@pytest.mark.parametrize("size", [b"+5", b"0x5", b" 5", b"5 ", b"5;a=b", b"", b"-5", b"1_0", b"00000005"])
def test_sizes_that_servers_do_not_write_are_left_to_the_parser(size):
    assert whole_chunks(size + b"\r\nhello\r\n") is None
