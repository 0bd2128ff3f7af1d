"""Streams: the first byte leaves with the first delta, the answer is on record before its end, whoever leaves is not
worked for."""

import asyncio

import pytest

from rollwright.dialects import DIALECTS, KEEPALIVE
from rollwright.intercept import InterceptConfig
from rollwright.wire import EngineRefused, EngineUnavailable, Stop, WireError

from .doors import PuppetEngine, admitted, heard, rigged, until

ALL = sorted(DIALECTS)


@pytest.mark.parametrize("dialect", ALL)
async def test_the_first_byte_leaves_with_the_first_delta(dialect):
    async with rigged() as rig:
        rig.engine.say("one ", end=False)
        async with rig.post("hello", dialect=dialect) as answer:
            assert answer.status == 200
            assert answer.content_type == "text/event-stream"
            data = b""
            while "one " not in heard(dialect, data):
                data += await answer.content.readany()
            assert rig.trace.turns == 0
            rig.engine.say("two")
            data += await answer.read()
        assert heard(dialect, data) == "one two"
        DIALECTS[dialect].stream_reader().feed(data)
    assert [message.text for message in rig.trace.messages] == ["hello", "one two"]


@pytest.mark.parametrize("dialect", ALL)
async def test_the_answer_is_on_record_before_its_end_is_told(dialect, monkeypatch):
    """Law 10. The writer of the dialect looks at the trace at the moment when it is given the end."""
    seen = []
    async with rigged() as rig:
        original = DIALECTS[dialect].stream_writer

        def watching(call):
            writer = original(call)
            write = writer.write

            def looked(event):
                if type(event).__name__ == "End":
                    seen.append((rig.trace.turns, rig.trace.open_calls))
                return write(event)

            writer.write = looked
            return writer

        monkeypatch.setattr(type(DIALECTS[dialect]), "stream_writer", staticmethod(watching))
        rig.engine.say("done")
        async with rig.post("hello", dialect=dialect) as answer:
            await answer.read()
    assert seen == [(1, 0)]


@pytest.mark.parametrize("dialect", ALL)
async def test_a_silent_engine_is_covered_by_comments(dialect):
    async with rigged(config=InterceptConfig(keepalive_s=0.02)) as rig:
        async with rig.post("hello", dialect=dialect) as answer:
            data = b""
            while data.count(KEEPALIVE) < 2:
                data += await answer.content.readany()
            assert heard(dialect, data) == ""
            rig.engine.say("late")
            data += await answer.read()
        assert heard(dialect, data) == "late"


async def test_an_engine_that_speaks_is_not_talked_over():
    async with rigged(config=InterceptConfig(keepalive_s=30)) as rig:
        rig.engine.say("a", "b")
        async with rig.post("hello") as answer:
            assert KEEPALIVE not in await answer.read()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_is_not_worked_for(stream):
    async with rigged() as rig:
        rig.engine.say("one ", end=False)
        asking = asyncio.ensure_future(rig.post("hello", stream=stream).__aenter__())
        await rig.engine.asked.wait()
        if stream:
            answer = await asking
            answer.close()
        else:
            asking.cancel()
        await until(lambda: rig.engine.cancelled == 1)
        await until(lambda: not rig.admission.running)
        assert rig.trace.open_calls == 0
    (call,) = rig.trace.freeze(Stop.FINISHED).calls
    assert call.reply == -1
    assert call.failure is not None


@pytest.mark.parametrize("dialect", ALL)
async def test_an_engine_that_dies_within_a_stream_is_told_as_the_dialect_tells_it(dialect):
    async with rigged() as rig:
        rig.engine.say("half", end=False)
        rig.engine.play.put_nowait(EngineUnavailable("the engine died"))
        async with rig.post("hello", dialect=dialect) as answer:
            data = await answer.read()
        with pytest.raises(EngineUnavailable, match="the engine died"):
            DIALECTS[dialect].stream_reader().feed(data)
    trace = rig.trace.freeze(Stop.FAILED)
    assert "cut after part" in trace.untrainable
    assert not trace.trainable


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize(("error", "status"), [(EngineUnavailable("away"), 503), (EngineRefused("too long"), 400)])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_fails_before_its_first_word_is_an_ordinary_error(dialect, error, status, stream):
    async with rigged() as rig:
        rig.engine.play.put_nowait(error)
        async with rig.post("hello", dialect=dialect, stream=stream) as answer:
            assert answer.status == status
            assert answer.headers["x-should-retry"] == "false"
            assert DIALECTS[dialect].read_error(status, await answer.read()) == str(error)
        assert (type(rig.session.broken), str(rig.session.broken)) == (type(error), str(error))


@pytest.mark.parametrize("dialect", ALL)
async def test_an_end_that_never_comes_is_a_cut_stream(dialect):
    class Forgetful(PuppetEngine):
        async def playing(self, call):
            async for event in super().playing(call):
                yield event
                return

    async with rigged(Forgetful()) as rig:
        rig.engine.say("half")
        async with rig.post("hello", dialect=dialect) as answer:
            data = await answer.read()
        with pytest.raises(EngineUnavailable):
            DIALECTS[dialect].stream_reader().feed(data)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_rollout_that_ends_unblocks_all_who_wait(stream):
    """Law 9: nobody waits for an answer that will not come, and the neighbours go on."""
    async with rigged() as rig, admitted(rig.interceptor, PuppetEngine(), rig.client) as other:
        rig.engine.say("half", end=False)
        other.engine.say("half ", end=False)
        waiting = asyncio.ensure_future(_text(rig.post("a", stream=stream)))
        neighbour = asyncio.ensure_future(_text(other.post("b")))
        await rig.engine.asked.wait()
        await other.engine.asked.wait()
        await rig.interceptor._dismiss(rig.admission)
        status, data = await waiting
        assert status == (200 if stream else 403)
        if stream:
            with pytest.raises(EngineUnavailable, match="over"):
                DIALECTS["chat"].stream_reader().feed(data)
        other.engine.say("whole")
        status, data = await neighbour
        assert heard("chat", data) == "half whole"
        assert rig.trace.open_calls == 0


async def _text(asking):
    async with asking as answer:
        return answer.status, await answer.read()


async def test_a_client_that_does_not_read_holds_the_engine_back_and_then_loses_its_call():
    """Law 14: what is written for a client that takes nothing is bounded, and so is the wait for it."""
    word = "x" * 50_000

    class Endless(PuppetEngine):
        said = 0

        async def playing(self, call):
            from rollwright.wire import TextDelta

            try:
                while True:
                    self.said += 1
                    yield TextDelta(word)
            except GeneratorExit:
                self.cancelled += 1
                raise

    async with rigged(Endless(), config=InterceptConfig(drain_timeout_s=0.2)) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.interceptor.port, limit=1024)
        body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"go"}]}'
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-api-key: {rig.door.key}\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await until(lambda: rig.engine.cancelled == 1)
        assert rig.engine.said * len(word) < 64 * 2**20
        writer.close()
        assert await reader.read(100)
    assert rig.trace.open_calls == 0


async def test_http_1_0_is_answered_to_the_end_of_the_connection():
    async with rigged() as rig:
        rig.engine.say("plain")
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.interceptor.port)
        body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"go"}]}'
        head = f"POST /v1/chat/completions HTTP/1.0\r\nx-api-key: {rig.door.key}\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        data = await reader.read()
        writer.close()
    head, _, stream = data.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert heard("chat", stream) == "plain"


async def test_what_cannot_be_written_is_told_and_not_a_broken_line():
    async with rigged() as rig:
        rig.engine.say("fine ", "\ud800")
        async with rig.post("hello") as answer:
            with pytest.raises((EngineUnavailable, WireError)):
                DIALECTS["chat"].stream_reader().feed(await answer.read())
        await until(lambda: not rig.admission.running)
        rig.engine.play = asyncio.Queue()
        rig.engine.say("next")
        async with rig.post("again", stream=False) as answer:
            assert answer.status == 200


async def test_a_connection_serves_one_request_after_another():
    async with rigged() as rig:
        for turn in range(6):
            rig.engine.say(f"answer {turn}")
            async with rig.post("hello", stream=bool(turn % 2)) as answer:
                await answer.read()
            assert len(rig.interceptor._runner.server.connections) == 1
