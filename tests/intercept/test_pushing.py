"""The whole way of a stream, from an engine's socket to a program's: what a relay pushes keeps the laws of streams."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress

import pytest

from rollwright.dialects import DIALECTS
from rollwright.engines import RelayConfig
from rollwright.engines.relay import RelayEngine
from rollwright.intercept import InterceptConfig
from rollwright.wire import EngineUnavailable, Stop

from .doors import PATHS, heard, request, rigged, until

ALL = sorted(DIALECTS)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
)


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def piece(text):
    return chunk(b'data: {"choices":[{"index":0,"delta":{"content":%b}}]}\n\n' % json.dumps(text).encode())


class Played:
    """An engine of sockets alone. A test writes what it says, byte by byte if it likes."""

    def __init__(self):
        self.asked = asyncio.Event()
        self.gone = asyncio.Event()
        self.line = None

    async def serve(self, reader, writer):
        self.line = writer
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.asked.set()
            while await reader.read(2**16):
                pass
        except ConnectionError:
            pass
        finally:
            self.gone.set()
            writer.close()

    async def say(self, *data):
        async with asyncio.timeout(10):
            await self.asked.wait()
            for part in data:
                self.line.write(part)
                await self.line.drain()


@asynccontextmanager
async def relayed(config=None):
    engine = Played()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = RelayConfig(base_url=f"http://127.0.0.1:{port}", api_key_env="NO_KEY_IS_NEEDED", max_retries=0)
    async with server, RelayEngine(settings, "m") as relay, rigged(relay, config=config) as rig:
        yield engine, rig


async def _until_heard(answer, dialect, text, data=b""):
    while heard(dialect, data) != text:
        data += await answer.content.readany()
    return data


@pytest.mark.parametrize("dialect", ALL)
async def test_each_piece_is_passed_on_when_it_comes(dialect):
    async with relayed() as (engine, rig):
        asking = asyncio.ensure_future(rig.post("hello", dialect=dialect).__aenter__())
        await engine.say(HEAD, piece("one "))
        answer = await asking
        data = await _until_heard(answer, dialect, "one ")
        # Cut within the chunk, then whole, then two at once.
        await engine.say(piece("two ")[:20])
        await engine.say(piece("two ")[20:], piece("three "))
        data = await _until_heard(answer, dialect, "one two three ", data)
        assert (rig.trace.turns, rig.trace.open_calls) == (0, 1)
        await engine.say(piece('"four" ') + piece("\n\n"), chunk(END) + b"0\r\n\r\n")
        data += await answer.read()
        assert heard(dialect, data) == 'one two three "four" \n\n'
        assert rig.trace.usage.completion_tokens == 2
    assert [message.text for message in rig.trace.messages] == ["hello", 'one two three "four" \n\n']


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("way", ["reset", "closed", "nonsense", "its own error"])
async def test_an_engine_that_breaks_off_is_told_as_the_dialect_tells_it(dialect, way):
    async with relayed() as (engine, rig):
        asking = asyncio.ensure_future(rig.post("hello", dialect=dialect).__aenter__())
        await engine.say(HEAD, piece("half"))
        answer = await asking
        data = await _until_heard(answer, dialect, "half")
        if way == "nonsense":
            await engine.say(chunk(b"data: {\n\n"))
        elif way == "its own error":
            await engine.say(chunk(b'data: {"error":{"message":"out of memory","code":503}}\n\n'))
        elif way == "reset":
            engine.line.transport.abort()
        else:
            engine.line.close()
        data += await answer.read()
        with pytest.raises(EngineUnavailable):
            DIALECTS[dialect].stream_reader().feed(data)
        await until(lambda: not rig.admission.running)
        assert rig.engine.stats.in_flight == 0
    frozen = rig.trace.freeze(Stop.FAILED)
    assert "cut after part" in frozen.untrainable


@pytest.mark.parametrize("words", range(3))
async def test_a_client_that_leaves_at_any_point_ends_the_engines_work(words):
    async with relayed() as (engine, rig):
        _, writer = await asyncio.open_connection("127.0.0.1", rig.interceptor.port)
        _ask(writer, rig)
        if words:
            await engine.say(HEAD, *[piece("word ")] * words)
        await engine.asked.wait()
        writer.transport.abort()
        await asyncio.wait_for(engine.gone.wait(), 10)
        await until(lambda: not rig.admission.running)
        assert rig.engine.stats.in_flight == 0
        assert rig.trace.open_calls == 0


async def test_a_client_that_does_not_read_stops_the_engine_and_not_the_memory():
    """Law 14, over the whole way: the engine's own socket runs full."""
    word = piece("x" * 50_000)
    async with relayed(InterceptConfig(drain_timeout_s=0.5)) as (engine, rig):
        _, writer = await asyncio.open_connection("127.0.0.1", rig.interceptor.port, limit=1024)
        _ask(writer, rig)
        await engine.say(HEAD)
        said = 0

        async def talk():
            nonlocal said
            with suppress(ConnectionError):
                while not engine.gone.is_set():
                    engine.line.write(word)
                    await engine.line.drain()
                    said += len(word)

        await asyncio.wait_for(talk(), 30)
        await asyncio.wait_for(engine.gone.wait(), 10)
        assert said < 64 * 2**20
        await until(lambda: not rig.admission.running)
        writer.close()
    assert rig.trace.open_calls == 0


async def test_a_listener_joins_late_and_hears_all_of_it():
    """A retry that is marked as one follows the call that runs."""
    async with relayed() as (engine, rig):
        asking = asyncio.ensure_future(rig.post("hello").__aenter__())
        await engine.say(HEAD, piece("one "))
        answer = await asking
        data = await _until_heard(answer, "chat", "one ")
        follower = await rig.post("hello", headers={"x-stainless-retry-count": "1"}).__aenter__()
        later = await _until_heard(follower, "chat", "one ")
        await engine.say(piece("two"), chunk(END) + b"0\r\n\r\n")
        assert heard("chat", data + await answer.read()) == "one two"
        assert heard("chat", later + await follower.read()) == "one two"
        assert rig.trace.turns == 1


def _ask(writer, rig):
    body = json.dumps(request("chat", "go", stream=True)).encode()
    head = f"POST {PATHS['chat']} HTTP/1.1\r\nhost: x\r\nx-api-key: {rig.door.key}\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
