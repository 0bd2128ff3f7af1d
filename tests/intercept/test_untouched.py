"""Fields that we do not know reach an engine of the same dialect as they were written, wherever they stand: from socket
to socket, in a first request and in those of which only the tail is parsed."""

import asyncio
import contextlib
import copy
import json

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from dialects.cases import json_values, texts
from dialects.test_lossless import BODIES
from rollwright.dialects import DIALECTS
from rollwright.engines.config import RelayConfig
from rollwright.engines.relay import RelayEngine
from rollwright.telemetry.loop import new_event_loop
from rollwright.wire import Finish, ModelCall, ModelReply, assistant

from .doors import PATHS, rigged

HISTORY = {"chat": "messages", "responses": "input", "messages": "messages"}
UNKNOWN = texts.map(lambda text: f"x_{text}")


class Wire:
    """A rollout at the door, and a relay to an endpoint that keeps the bytes it is sent."""

    def __init__(self, dialect):
        self.dialect = dialect
        self.sent = []
        self.runner = asyncio.Runner(loop_factory=new_event_loop)
        self.stack = contextlib.AsyncExitStack()
        self.runner.run(self._open())

    async def _open(self):
        reply = ModelReply(assistant("ok"), Finish.STOP, model="m")
        body = DIALECTS[self.dialect].write_reply(reply, ModelCall("m", ()))

        async def answer(request):
            self.sent.append(await request.read())
            return web.Response(body=body, content_type="application/json")

        server = web.ServerRunner(web.Server(answer))
        await server.setup()
        self.stack.push_async_callback(server.cleanup)
        await web.TCPSite(server, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{server.addresses[0][1]}"
        relay = RelayConfig(base_url=url, dialect=self.dialect, api_key_env="NO_KEY_IS_NEEDED", max_retries=0)
        engine = await self.stack.enter_async_context(RelayEngine(relay, "m"))
        self.rig = await self.stack.enter_async_context(rigged(engine))

    def close(self):
        self.runner.run(self.stack.aclose())
        self.runner.close()

    def passed_on(self, body):
        """What the endpoint gets for these bytes."""
        return self.runner.run(self._passed_on(body))

    async def _passed_on(self, body):
        headers = {"x-api-key": self.rig.door.key}
        async with self.rig.client.post(self.rig.door.url + PATHS[self.dialect], data=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
        return self.sent.pop()


@pytest.fixture(params=sorted(BODIES))
def wire(request):
    wire = Wire(request.param)
    yield wire
    wire.close()


def objects(value, path=()):
    """The paths of all objects in a value, itself included."""
    if isinstance(value, dict):
        yield path
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(inner, dict | list):
            yield from objects(inner, (*path, name))


def at(value, path):
    for name in path:
        value = value[name]
    return value


@st.composite
def grown(draw, body):
    """The body with fields that nobody knows, in any of its objects."""
    body = copy.deepcopy(body)
    for path in draw(st.lists(st.sampled_from(list(objects(body))), min_size=1, max_size=4)):
        at(body, path)[draw(UNKNOWN)] = draw(json_values)
    return body


def test_unknown_fields_arrive_as_they_were_written_at_any_depth(wire):
    whole, history = BODIES[wire.dialect], HISTORY[wire.dialect]

    @settings(max_examples=60)
    @given(grown(whole), st.sampled_from([None, 1]), st.booleans())
    def check(body, indent, ascii_only):
        # Twice: the second request continues the first, which is not parsed again.
        for more in ([], [{"role": "user", "content": "and?", "x_new": {"deep": [1.5, None]}}]):
            asked = {**body, history: [*body[history], *more]}
            sent = wire.passed_on(json.dumps(asked, indent=indent, ensure_ascii=ascii_only).encode())
            assert json.loads(sent) == {**asked, "model": "m"}

    check()


NUMBERS = ["1.10", "1E5", "-0.0", "18446744073709551615", "5e-324", "0.1000000000000000055511151231257827"]
HUGE = "123456789012345678901234567890"


@pytest.mark.parametrize("number", [*NUMBERS, HUGE])
def test_numbers_are_passed_on_as_what_they_are(wire, number):
    """Digit for digit within the history, which is never written anew; by value in the settings around it, up to 64
    bits, as every JSON reader on the way has them."""
    whole, history = BODIES[wire.dialect], HISTORY[wire.dialect]
    marked = [*whole[history][:-1], {**whole[history][-1], "x_two": ["@"]}]
    body = json.dumps({**whole, "x_one": "@", history: marked})
    sent = wire.passed_on(body.replace('"@"', number).encode())
    assert json.loads(sent, parse_float=str, parse_int=str)[history][-1]["x_two"] == [number]
    if number != HUGE:
        assert json.loads(sent)["x_one"] == json.loads(number)
