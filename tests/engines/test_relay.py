"""The relay against a real server that fails in every way a server can."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing
from functools import partial

import pytest
from aiohttp import web

from ears import Keeping, asked_for, events_from
from engines.fake_endpoint import ANSWER, CALL, CHAT, answer, cut, failing, stream_bytes, streaming
from rollwright.wire import (
    EngineRefused,
    EngineUnavailable,
    Image,
    Message,
    ModelCall,
    Sampling,
    TextDelta,
    WireError,
    reply_of,
    user,
)


def stepwise(engine):
    """The events of a call, each when it is asked for."""
    return asked_for(partial(engine.stream, CALL))


async def test_a_call_is_answered(relay, endpoint) -> None:
    engine = relay()
    reply = await engine.complete(CALL)
    assert (reply.message, reply.finish, reply.usage) == (ANSWER.message, ANSWER.finish, ANSWER.usage)
    assert endpoint.requests[0].path == "/v1/chat/completions"
    assert engine.stats.calls == engine.stats.attempts == 1
    assert engine.stats.bytes_sent == len(endpoint.bodies[0])


async def test_a_stream_is_delivered_as_it_comes(relay, endpoint) -> None:
    """The first event arrives while the server still holds the rest back."""
    release = asyncio.Event()

    async def rest(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.Response()

    head, *tail = [piece for piece in stream_bytes() if piece]

    async def slowly(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(head + tail[0])
        await rest(request)
        for piece in tail[1:]:
            await response.write(piece)
        return response

    endpoint.script = [slowly]
    async with aclosing(stepwise(relay())) as events:
        got = [await anext(events)]
        assert isinstance(got[0], TextDelta)
        release.set()
        got += [event async for event in events]
    assert reply_of(got).message == ANSWER.message


async def test_connections_are_used_again(relay, endpoint) -> None:
    engine = relay()
    for _ in range(3):
        await engine.complete(CALL)
        endpoint.script = [streaming()]
        await events_from(engine, CALL)
    assert len({request.transport for request in endpoint.requests}) == 1


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_what_may_pass_is_sent_again(relay, endpoint, status: int) -> None:
    endpoint.script = [failing(status), failing(status)]
    engine = relay()
    assert (await engine.complete(CALL)).message == ANSWER.message
    endpoint.script = [failing(status), streaming()]
    assert reply_of(await events_from(engine, CALL)).message == ANSWER.message
    assert (engine.stats.attempts, engine.stats.retries) == (5, 3)
    assert engine.stats.rate_limited == (3 if status == 429 else 0)


async def test_a_stream_is_sent_again_before_its_first_event(relay, endpoint) -> None:
    endpoint.script = [failing(503), streaming([], cut), streaming([b"data: {not json\n\n"]), streaming()]
    engine = relay()
    assert reply_of(await events_from(engine, CALL)).message == ANSWER.message
    assert engine.stats.attempts == 4


async def test_retry_after_is_a_floor(relay, endpoint, naps) -> None:
    endpoint.script = [failing(429, Retry_After="7"), failing(503, retry_after_ms="1500"), failing(500)]
    await relay().complete(CALL)
    first, second, third = naps.taken
    assert 7 <= first <= 8
    assert 1.5 <= second <= 2.5
    assert third <= 2


async def test_waiting_longer_than_the_deadline_is_giving_up(relay, endpoint, naps) -> None:
    endpoint.default = failing(429, "slow down", Retry_After="4000")
    with pytest.raises(EngineUnavailable, match=r"429: slow down .*asks to wait 4000 s.*lower max_concurrency"):
        await relay().complete(CALL)
    assert naps.taken == []


async def test_a_storm_is_survived_and_recovered_from(relay, endpoint) -> None:
    """More calls than the endpoint bears: the limit falls, every call is answered, the limit comes back."""
    bears, inside = 4, 0

    async def fragile(request: web.Request) -> web.StreamResponse:
        nonlocal inside
        inside += 1
        try:
            await asyncio.sleep(0)
            return await (answer() if inside <= bears else failing(503))(request)
        finally:
            inside -= 1

    endpoint.default = fragile
    engine = relay(max_concurrency=32, max_retries=60)
    replies = await asyncio.gather(*(engine.complete(CALL) for _ in range(128)))
    assert len(replies) == 128
    assert engine.stats.retries > 0
    assert engine.stats.limit < 32
    bears = 1000
    while engine.stats.limit < 32:
        await asyncio.gather(*(engine.complete(CALL) for _ in range(64)))
        assert engine.stats.calls < 10_000
    assert engine.stats.failures == 0


async def test_giving_up_names_the_endpoint_and_the_next_step(relay, endpoint) -> None:
    endpoint.default = failing(500, "on fire")
    engine = relay()
    with pytest.raises(EngineUnavailable) as caught:
        await engine.complete(CALL)
    address = f"http://127.0.0.1:{endpoint.port}/v1"
    assert str(caught.value) == (
        f"{address} answered 500: on fire (gave up after 4 attempts); look at the server's log"
    )
    assert engine.stats.failures == 1


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, r"refused the call \(400: no\)"),
        (401, r"refused the key \(401: no\); no key was sent; put one into THE_KEY"),
        (403, r"refused the key \(403: no\); no key was sent; put one into THE_KEY"),
        (404, r"check the model name 'm' and the base_url"),
        (422, r"refused the call \(422: no\)"),
    ],
)
async def test_a_refusal_is_final(relay, endpoint, status: int, said: str) -> None:
    endpoint.default = failing(status)
    engine = relay(api_key_env="THE_KEY")
    with pytest.raises(EngineRefused, match=said):
        await engine.complete(CALL)
    with pytest.raises(EngineRefused, match=said):
        await events_from(engine, CALL)
    assert engine.stats.attempts == 2


async def test_a_wrong_key_is_sent_and_never_shown(relay, endpoint, monkeypatch) -> None:
    monkeypatch.setenv("THE_KEY", "sk-secret-123")
    endpoint.default = failing(401, "bad key")
    engine = relay(api_key_env="THE_KEY")
    with pytest.raises(EngineRefused, match=r"check the key in THE_KEY$") as caught:
        await engine.complete(CALL)
    assert endpoint.requests[0].headers["Authorization"] == "Bearer sk-secret-123"
    shown = f"{caught.value!r} {caught.value.__cause__!r} {engine!r} {engine._endpoint!r}"
    assert "secret" not in shown


@pytest.mark.parametrize(
    "step", [failing(429, "x", x_should_retry="false"), answer(429, b'{"error": {"code": "insufficient_quota"}}')]
)
async def test_what_the_server_calls_hopeless_is_final(relay, endpoint, step) -> None:
    endpoint.default = step
    with pytest.raises(EngineRefused):
        await relay().complete(CALL)
    assert len(endpoint.requests) == 1


async def test_redirects_are_not_followed(relay, endpoint) -> None:
    endpoint.default = answer(307, b"", Location="http://elsewhere.invalid/v1")
    with pytest.raises(EngineRefused, match=r"sends calls on to http://elsewhere.invalid/v1 \(307\)"):
        await relay().complete(CALL)
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"choices": []}', b"\xff\xfe", b"<html>gateway</html>"])
async def test_malformed_answers_are_retried_then_unavailable(relay, endpoint, body: bytes) -> None:
    endpoint.script = [answer(body=body)]
    engine = relay()
    assert (await engine.complete(CALL)).message == ANSWER.message
    endpoint.default = answer(body=body)
    with pytest.raises(EngineUnavailable, match=r"makes no sense.*4 attempts.*speaks this dialect"):
        await engine.complete(CALL)


async def test_a_cut_body_is_retried(relay, endpoint) -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"choices"')
        return await cut(request)

    endpoint.script = [half, cut]
    assert (await relay().complete(CALL)).message == ANSWER.message


@pytest.mark.parametrize("ending", ["reset", "short", "garbage"])
async def test_a_stream_that_breaks_after_its_first_event_is_unavailable(relay, endpoint, ending: str) -> None:
    delivered = asyncio.Event()

    async def breaking(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"".join(stream_bytes()[:2]))
        await delivered.wait()
        if ending == "garbage":
            await response.write(b"data: {\n\n")
        return await cut(request) if ending == "reset" else response

    endpoint.default = breaking
    engine = relay()
    events = stepwise(engine)
    assert isinstance(await anext(events), TextDelta)
    delivered.set()
    with pytest.raises(EngineUnavailable, match="within a stream"):
        _ = [event async for event in events]
    assert len(endpoint.requests) == 1, "what was delivered is not asked for again"


async def test_a_stalled_stream_is_unavailable_and_dropped(relay, endpoint) -> None:
    endpoint.default = streaming(stream_bytes()[:2], endpoint.stall)
    with pytest.raises(EngineUnavailable, match="did not answer in time within a stream"):
        await events_from(relay(stall_timeout_s=0.05), CALL)
    await asyncio.wait_for(endpoint.gone.wait(), 10)


@pytest.mark.parametrize("kind", ["complete", "stream"])
async def test_slow_headers_are_a_timeout_and_retried(relay, endpoint, kind: str) -> None:
    endpoint.script = [endpoint.stall]
    endpoint.default = answer() if kind == "complete" else streaming()
    engine = relay(timeout_s=0.05, max_retries=50)
    reply = await engine.complete(CALL) if kind == "complete" else reply_of(await events_from(engine, CALL))
    assert reply.message == ANSWER.message
    assert engine.stats.retries >= 1
    await asyncio.wait_for(endpoint.gone.wait(), 10)


async def test_a_deadline_holds_over_all_attempts(relay, endpoint) -> None:
    endpoint.default = endpoint.stall
    with pytest.raises(EngineUnavailable, match="did not answer in time"):
        await relay(timeout_s=60, deadline_s=0.1).complete(CALL)
    endpoint.default = streaming(stream_bytes()[:2], endpoint.stall)
    with pytest.raises(EngineUnavailable, match="did not answer in time"):
        await events_from(relay(deadline_s=0.1), CALL)


@pytest.mark.parametrize("kind", ["complete", "stream"])
async def test_a_huge_answer_is_refused(relay, endpoint, kind: str) -> None:
    endpoint.default = streaming([b"data: " + b"x" * 65536] * 64)
    engine = relay(max_reply_bytes=100_000)
    with pytest.raises(EngineRefused, match="sent more than 100000 bytes"):
        await engine.complete(CALL) if kind == "complete" else await events_from(engine, CALL)
    assert engine.stats.attempts == 1


async def test_a_huge_error_is_cut(relay, endpoint) -> None:
    endpoint.default = answer(400, b"y" * 2**22)
    with pytest.raises(EngineRefused) as caught:
        await relay().complete(CALL)
    assert len(str(caught.value)) < 1000


async def test_nobody_listens(relay, naps) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        engine = relay(base_url=f"http://127.0.0.1:{port}")
        with pytest.raises(EngineUnavailable, match=rf"127.0.0.1:{port}/v1 cannot be reached: .*check the base_url"):
            await engine.probe()
    assert engine.stats.attempts == 2, "a probe does not spend all retries"


async def test_probe_asks_for_little(relay, endpoint) -> None:
    await relay().probe()
    call = CHAT.read_request(endpoint.bodies[0], None)
    assert (call.model, call.sampling.max_tokens) == ("m", 16)


@pytest.mark.parametrize("kind", ["complete", "stream"])
async def test_cancelling_a_call_drops_its_connection(relay, endpoint, kind: str) -> None:
    endpoint.default = endpoint.stall if kind == "complete" else streaming(stream_bytes()[:2], endpoint.stall)
    engine = relay()
    task = asyncio.create_task(engine.complete(CALL) if kind == "complete" else events_from(engine, CALL))
    await asyncio.wait_for(endpoint.asked.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(endpoint.gone.wait(), 10)
    assert engine.stats.in_flight == 0


async def test_leaving_a_stream_early_drops_its_connection(relay, endpoint) -> None:
    endpoint.default = streaming(stream_bytes()[:2], endpoint.stall)
    engine = relay()
    async with aclosing(stepwise(engine)) as events:
        await anext(events)
        assert engine.stats.in_flight == 1
    await asyncio.wait_for(endpoint.gone.wait(), 10)
    assert engine.stats.in_flight == 0


async def test_a_listener_that_fails_hears_its_own_error(relay, endpoint) -> None:
    """It is not the engine's, so nothing is asked for again."""

    class Broken(Keeping):
        def hear(self, delta):
            raise WireError("this cannot be told on")

    endpoint.default = streaming(stream_bytes()[:2], endpoint.stall)
    engine = relay()
    with pytest.raises(WireError, match="told on"):
        await engine.stream(CALL, Broken())
    await asyncio.wait_for(endpoint.gone.wait(), 10)
    assert (engine.stats.attempts, engine.stats.in_flight) == (1, 0)


async def test_the_end_of_a_stream_holds_nothing(relay, endpoint) -> None:
    """A consumer that stops at End without closing the generator still frees slot and connection."""
    endpoint.default = streaming()
    engine = relay(max_concurrency=1)
    events = stepwise(engine)
    while not isinstance(await anext(events), TextDelta):
        pass
    async for event in events:
        if not isinstance(event, TextDelta):
            break
    assert engine.stats.in_flight == 0
    await events_from(engine, CALL)
    await events.aclose()


async def test_closing_ends_calls_in_flight(relay, endpoint) -> None:
    endpoint.default = endpoint.stall
    engine = relay()
    task = asyncio.create_task(engine.complete(CALL))
    await asyncio.wait_for(endpoint.asked.wait(), 10)
    await engine.close()
    with pytest.raises(EngineUnavailable, match="was closed"):
        await asyncio.wait_for(task, 10)
    with pytest.raises(EngineUnavailable, match="was closed"):
        await engine.complete(CALL)


async def test_an_obituary_ends_the_retries(relay, endpoint) -> None:
    endpoint.default = cut
    lives = iter([None, "the model died of X"])
    engine = relay(obituary=lambda: next(lives))
    with pytest.raises(EngineUnavailable, match=r"^the model died of X$"):
        await engine.complete(CALL)
    assert len(endpoint.requests) == 1


async def test_calls_are_paced(relay, naps) -> None:
    engine = relay(requests_per_minute=60)
    for _ in range(4):
        await engine.complete(CALL)
    assert len(naps.taken) == 3
    assert all(0 < nap <= 3 for nap in naps.taken)
    assert naps.taken == sorted(naps.taken), "time stands still, so each call waits longer than the one before"


async def test_tokens_are_paced_by_what_was_used(relay, naps) -> None:
    """The guess for 600 tokens is corrected by the 5 that the endpoint counted."""
    engine = relay(tokens_per_minute=60 * 1000)
    call = ModelCall("m", (user("hi"),), sampling=Sampling(max_tokens=600))
    for _ in range(20):
        await engine.complete(call)
    assert naps.taken == []


async def test_a_call_that_would_wait_too_long_for_its_turn_fails_at_once(relay, endpoint) -> None:
    engine = relay(requests_per_minute=1, queue_timeout_s=30)
    await engine.complete(CALL)
    with pytest.raises(EngineUnavailable, match="rate limit set for"):
        await engine.complete(CALL)
    assert len(endpoint.requests) == 1


async def test_waiting_for_a_slot_has_a_deadline(relay, endpoint) -> None:
    endpoint.default = endpoint.stall
    engine = relay(max_concurrency=1, queue_timeout_s=0.05)
    task = asyncio.create_task(engine.complete(CALL))
    await asyncio.wait_for(endpoint.asked.wait(), 10)
    with pytest.raises(EngineUnavailable, match="no slot for"):
        await engine.complete(CALL)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_time_in_the_queue_is_reported_apart(relay, endpoint) -> None:
    release = asyncio.Event()

    async def held(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return await answer()(request)

    endpoint.script = [held]
    engine = relay(max_concurrency=1)
    first, second = asyncio.create_task(engine.complete(CALL)), asyncio.create_task(engine.complete(CALL))
    await asyncio.wait_for(endpoint.asked.wait(), 10)
    release.set()
    assert (await first).queue_s < (await second).queue_s


async def test_large_bodies_are_sent(relay, endpoint) -> None:
    await relay().complete(ModelCall("m", (user("x" * 3_000_000),)))
    assert len(endpoint.bodies[0]) > 3_000_000


async def test_an_image_that_nobody_has_is_refused(relay, endpoint) -> None:
    call = ModelCall("m", (Message("user", (Image("0" * 64, "image/png"),)),))
    with pytest.raises(EngineRefused, match="cannot be written"):
        await relay().complete(call)
    assert endpoint.requests == []


async def test_cookies_are_not_kept(relay, endpoint) -> None:
    endpoint.default = answer(Set_Cookie="who=me")
    engine = relay()
    for _ in range(2):
        await engine.complete(CALL)
    assert "Cookie" not in endpoint.requests[1].headers


async def test_its_repr_is_a_status_line(relay, endpoint) -> None:
    engine = relay(max_concurrency=5)
    assert repr(engine) == f"<RelayEngine http://127.0.0.1:{endpoint.port}/v1 chat: 0 in flight, 0 waiting, limit 5>"
