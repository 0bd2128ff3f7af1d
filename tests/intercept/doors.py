"""What the tests of the interceptor share: an engine that says what it is told to and when, a rollout at the door, and
clients that look at bytes."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp

from ears import played
from rollwright.dialects import DIALECTS
from rollwright.engines.function import FunctionEngine
from rollwright.harnesses import Limits, Session
from rollwright.intercept import InterceptConfig, Interceptor
from rollwright.traces import LiveTrace
from rollwright.wire import End, Finish, TextDelta, Usage, reply_of

_TEST_S = 60
PATHS = {name: dialect.path for name, dialect in DIALECTS.items()}


class PuppetEngine(FunctionEngine):
    """Each call waits for what the test puts into `play`: events, or an error to raise. Whole answers wait too."""

    def __init__(self):
        super().__init__(lambda call: "unused")
        self.play = asyncio.Queue()
        self.calls = []
        self.cancelled = 0
        self.asked = asyncio.Event()

    async def stream(self, call, ear):
        return await played(self.playing(call), ear)

    async def playing(self, call):
        self.calls.append(call)
        self.asked.set()
        try:
            while True:
                event = await self.play.get()
                if isinstance(event, Exception):
                    raise event
                yield event
                if isinstance(event, End):
                    return
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise

    async def complete(self, call):
        return reply_of([event async for event in self.playing(call)])

    def say(self, *words, end=True):
        for word in words:
            self.play.put_nowait(TextDelta(word))
        if end:
            self.play.put_nowait(End(Finish.STOP, Usage(3, len(words))))


class Rig:
    """One rollout at the door of an interceptor."""

    def __init__(self, engine, interceptor, session, door, client):
        self.engine, self.interceptor, self.session, self.door, self.client = (
            engine,
            interceptor,
            session,
            door,
            client,
        )
        self.trace = session.trace

    def post(self, *words, dialect="chat", stream=True, headers=None, key=None, body=None):
        headers = {"authorization": f"Bearer {self.door.key if key is None else key}", **(headers or {})}
        body = json.dumps(request(dialect, *words, stream=stream)).encode() if body is None else body
        return self.client.post(self.door.url + PATHS[dialect], data=body, headers=headers)

    @property
    def admission(self):
        return self.interceptor._by_key[self.door.key]


def request(dialect, *words, stream=False, **more):
    """A request that says `words`, turn about, as JSON values."""
    turns = [{"role": "assistant" if n % 2 else "user", "content": word} for n, word in enumerate(words)]
    if dialect == "responses":
        return {"model": "any", "input": turns, "stream": stream, **more}
    extra = {"max_tokens": 100} if dialect == "messages" else {}
    return {"model": "any", "messages": turns, "stream": stream, **extra, **more}


@asynccontextmanager
async def rigged(engine=None, *, limits=None, trace=None, config=None, interceptor=None, **options):
    engine = engine or PuppetEngine()
    session = Session(engine, trace or LiveTrace("t", 0), model="m", limits=limits or Limits(max_turns=None), **options)
    async with (
        # A law that is broken may show as an answer that never comes.
        asyncio.timeout(_TEST_S),
        interceptor or Interceptor(config or InterceptConfig()) as server,
        server.admit(session) as door,
        aiohttp.ClientSession() as client,
    ):
        yield Rig(engine, server, session, door, client)


@asynccontextmanager
async def admitted(interceptor, engine, client, **options):
    """One more rollout at the same door."""
    session = Session(engine, LiveTrace("t", 1), model="m", limits=Limits(max_turns=None), **options)
    async with interceptor.admit(session) as door:
        yield Rig(engine, interceptor, session, door, client)


async def until(true, within_s=10):
    """Turn the loop until something is true."""
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.001)


def heard(dialect, data):
    """The text that a stream said."""
    reader = DIALECTS[dialect].stream_reader()
    return "".join(event.text for event in reader.feed(data) if isinstance(event, TextDelta))
