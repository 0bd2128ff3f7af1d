"""What is promised of one dialect is kept in each of them, streamed and whole: limits, hooks, ends, pictures kept once,
silence that is covered."""

import asyncio
import itertools
import json
from collections import Counter

import pytest

from rollwright.dialects import DIALECTS
from rollwright.engines.function import FunctionEngine
from rollwright.engines.scripted.config import Fault
from rollwright.harnesses import Limits
from rollwright.harnesses.guard import Refusal
from rollwright.intercept import InterceptConfig
from rollwright.intercept.delivery import Outlet
from rollwright.wire import EngineUnavailable, Finish, Image, ModelCall, ModelReply, Stop, Usage, assistant, user
from sdks import anthropic, openai

from .doors import PATHS, admitted, heard, request, rigged, until
from .sdk_clients import PIXELS, Desk
from .sdk_engines import KINDS, engine_of
from .sdk_policy import WAITED, wait_for

# The SDKs build their schemas at first use, on the loop.
pytestmark = pytest.mark.blocks_loop

ALL = sorted(DIALECTS)
each = pytest.mark.parametrize("dialect", ALL)
both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


async def told(asking):
    async with asking as answer:
        return answer.status, await answer.read()


def said(dialect, stream, data):
    return heard(dialect, data) if stream else DIALECTS[dialect].read_reply(data).message.text


def check_refused(dialect, status, data, kind, words):
    """A refusal that no client takes for an answer or tries again."""
    assert status == 400
    error = json.loads(data)["error"]
    assert words in DIALECTS[dialect].read_error(status, data)
    assert kind in (error["type"], error.get("code")), error


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


LIMITS = {
    "turns": (Limits(max_turns=1), Stop.TURNS_SPENT),
    "input": (Limits(max_turns=None, max_input_tokens=10), Stop.TOKENS_SPENT),
    "output": (Limits(max_turns=None, max_output_tokens=5), Stop.TOKENS_SPENT),
    "total": (Limits(max_turns=None, max_total_tokens=15), Stop.TOKENS_SPENT),
    "time": (Limits(max_turns=None, timeout_s=60.0), Stop.TIME_SPENT),
}


@each
@both
@pytest.mark.parametrize("name", LIMITS)
async def test_a_spent_limit_is_a_clean_refusal_and_why_the_rollout_stopped(dialect, stream, name):
    limits, stop = LIMITS[name]
    clock = Clock()
    engine = FunctionEngine(lambda call: ModelReply(assistant("yes"), Finish.STOP, Usage(10, 5)))
    async with rigged(engine, limits=limits, clock=clock) as rig:
        status, data = await told(rig.post("one", dialect=dialect, stream=stream))
        assert (status, said(dialect, stream, data), rig.session.stopped) == (200, "yes", None)
        clock.now = 61.0
        for _ in range(2):
            status, data = await told(rig.post("two", dialect=dialect, stream=stream))
            check_refused(dialect, status, data, stop.value, f"its {stop.value.removesuffix('_spent')} ")
        assert (rig.session.stopped, rig.session.over.is_set()) == (stop, True)
    trace = rig.trace.freeze(stop)
    assert (trace.turns, len(trace.calls), trace.usage.total_tokens) == (1, 1, 15)


@each
@both
async def test_an_answer_is_no_longer_than_the_budget_that_is_left(dialect, stream):
    asked = []

    def answer(call):
        asked.append(call.sampling.max_tokens)
        return ModelReply(assistant("yes"), Finish.STOP, Usage(10, 4))

    async with rigged(FunctionEngine(answer), limits=Limits(max_turns=None, max_output_tokens=10)) as rig:
        for _ in range(3):
            assert (await told(rig.post("go", dialect=dialect, stream=stream)))[0] == 200
        assert (await told(rig.post("go", dialect=dialect, stream=stream)))[0] == 400
    assert asked == [10, 6, 2]


class Watching:
    """A guard that changes what it is told to by the words of a call."""

    watches_answers = True

    async def request(self, call):
        text = call.messages[-1].text
        if text == "forbidden":
            return Refusal("not that")
        if text == "end":
            return Refusal("that was all", Stop.TASK_STOPPED)
        return ModelCall(call.model, (user("rewritten"),), stream=call.stream) if text == "rewrite" else call

    async def answered(self):
        return None

    async def response(self, call, reply):
        text = reply.message.text
        if text == "heard poison":
            return Refusal("not shown")
        return ModelReply(assistant("hidden"), Finish.STOP, reply.usage) if text == "heard secret" else reply


@each
@both
async def test_a_task_rewrites_refuses_and_stops(dialect, stream):
    async with rigged(FunctionEngine(lambda call: f"heard {call.messages[-1].text}")) as rig:
        rig.session.guard = Watching()
        for words, answer in (("rewrite", "heard rewritten"), ("secret", "hidden"), ("plain", "heard plain")):
            status, data = await told(rig.post(words, dialect=dialect, stream=stream))
            assert (status, said(dialect, stream, data)) == (200, answer)
        for words, why in (("forbidden", "not that"), ("poison", "not shown")):
            refused = await told(rig.post(words, dialect=dialect, stream=stream))
            check_refused(dialect, *refused, "refused_by_task", why)
            assert rig.session.stopped is None
        for words, why in (("end", "that was all"), ("plain", "its task ended it")):
            check_refused(dialect, *await told(rig.post(words, dialect=dialect, stream=stream)), "task_stopped", why)
        assert rig.session.stopped is Stop.TASK_STOPPED
    sampled = [node.message.text for node in rig.trace.freeze(Stop.TASK_STOPPED).nodes if node.call >= 0]
    assert sampled == ["heard rewritten", "heard secret", "heard plain", "heard poison"]


@each
@both
@pytest.mark.parametrize("begun", [True, False], ids=["half told", "silent"])
async def test_what_is_undelivered_when_the_rollout_ends_is_ended_in_its_dialect(dialect, stream, begun):
    async with rigged() as rig:
        if begun:
            rig.engine.say("half", end=False)
        waiting = asyncio.ensure_future(told(rig.post("a", dialect=dialect, stream=stream)))
        await rig.engine.asked.wait()
        await until(lambda: not begun or rig.engine.play.empty())
        await rig.interceptor._dismiss(rig.admission)
        status, data = await waiting
        if stream and begun:
            assert status == 200
            with pytest.raises(EngineUnavailable, match="over"):
                DIALECTS[dialect].stream_reader().feed(data)
        else:
            assert status == 403
            assert "over" in DIALECTS[dialect].read_error(status, data)
        assert (rig.engine.cancelled, rig.trace.open_calls) == (1, 0)


@each
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("function", "scripted")])
async def test_any_engine_that_dies_within_a_stream_is_told_in_any_dialect(kind, dialect):
    async with engine_of(kind, fault_script=(Fault.CUT_STREAM,)) as engine, rigged(engine) as rig:
        status, data = await told(rig.post("hello", dialect=dialect))
        assert status == 200
        with pytest.raises(EngineUnavailable):
            DIALECTS[dialect].stream_reader().feed(data)
        assert "cut after part" in rig.trace.freeze(Stop.FAILED).untrainable
        assert (await told(rig.post("hello", dialect=dialect)))[0] == 200


async def test_a_picture_is_kept_once_whoever_shows_it_in_whichever_dialect():
    engine = FunctionEngine(lambda call: "I see.")
    async with rigged(engine) as rig, admitted(rig.interceptor, engine, rig.client) as other, Desk() as desk:
        for one, dialect, stream in itertools.product((rig, other), ALL, (True, False)):
            assert await desk.work(dialect, one.door, stream=stream, blocking=False) == ("I see.", 0)
        assert (len(engine.images), engine.images.memory_bytes < 2 * len(PIXELS)) == (1, True)
        shown = {
            part
            for one in (rig, other)
            for node in one.trace.freeze(Stop.FINISHED).nodes
            for part in node.message.parts
            if isinstance(part, Image)
        }
        (image,) = shown
        assert engine.images.get(image) == PIXELS
        rig.session.close()
        assert engine.images.get(image) == PIXELS, "the other rollout still holds it"
        other.session.close()
        assert len(engine.images) == 0


async def test_no_sdk_takes_the_comments_of_a_silent_engine_for_its_words(tmp_path, monkeypatch):
    written = Counter()
    tick = Outlet._tick

    def counted(outlet):
        tick(outlet)
        written[outlet] += outlet.begun

    monkeypatch.setattr(Outlet, "_tick", counted)
    ways = [{"dialect": dialect, "blocking": blocking} for dialect in ALL for blocking in (True, False)]
    config, words = InterceptConfig(keepalive_s=0.02), wait_for(tmp_path / "gate")
    async with engine_of("function") as engine, rigged(engine, config=config) as rig, Desk() as desk:
        asking = [asyncio.create_task(desk.say(door=rig.door, words=words, stream=True, **way)) for way in ways]
        await until(lambda: sum(count >= 5 for count in written.values()) == len(ways), within_s=30)
        (tmp_path / "gate").touch()
        assert await asyncio.gather(*asking) == [WAITED] * len(ways)
    assert rig.trace.turns == len(ways)


async def test_models_are_listed_and_found_by_both_vendors_clients():
    async with rigged(FunctionEngine(lambda call: "x")) as rig:
        address = {"api_key": rig.door.key, "max_retries": 0}
        async with (
            openai.AsyncOpenAI(base_url=f"{rig.door.url}/v1", **address) as theirs,
            anthropic.AsyncAnthropic(base_url=rig.door.url, **address) as others,
        ):
            for client, missing in ((theirs, openai.NotFoundError), (others, anthropic.NotFoundError)):
                (model,) = [model async for model in client.models.list()]
                assert model == await client.models.retrieve("m")
                assert model.id == "m"
                with pytest.raises(missing, match="no model 'other'"):
                    await client.models.retrieve("other")
            assert (model.type, model.display_name, model.created_at.year) == ("model", "m", 1970)


@each
@both
async def test_several_answers_to_one_request_are_refused_and_not_dropped(dialect, stream):
    """No dialect but chat can ask for them, and there it is said that there is one."""
    async with rigged(FunctionEngine(lambda call: "x")) as rig:
        body = json.dumps(request(dialect, "hello", stream=stream, n=2)).encode()
        async with rig.client.post(
            rig.door.url + PATHS[dialect], data=body, headers={"x-api-key": rig.door.key}
        ) as answer:
            assert answer.status == (400 if dialect == "chat" else 200)
