"""An interceptor under attack, and what each attack must leave as it was."""

import asyncio
import contextlib
import json

from rollwright.dialects import DIALECTS
from rollwright.engines.function import FunctionEngine
from rollwright.telemetry.loop import new_event_loop

from .doors import PATHS, admitted, rigged, until


class House:
    """An interceptor with two rollouts: one that is attacked and one that lives next door."""

    def __init__(self):
        self.runner = asyncio.Runner(loop_factory=new_event_loop)
        self.stack = contextlib.AsyncExitStack()
        self.runner.run(self._open())

    async def _open(self):
        engine = FunctionEngine(lambda call: "fine")
        self.rig = await self.stack.enter_async_context(rigged(engine))
        self.neighbour = await self.stack.enter_async_context(
            admitted(self.rig.interceptor, FunctionEngine(lambda call: "unharmed"), self.rig.client)
        )

    def close(self):
        self.runner.run(self.stack.aclose())
        self.runner.close()

    def check(self, *, dialect="chat", body, path=None, headers=None):
        """Send it; what comes back is an answer or a typed refusal, and nothing stays behind."""
        return self.runner.run(self._check(dialect, body, path or PATHS[dialect], headers or {}))

    async def _check(self, dialect, body, path, headers):
        rig = self.rig
        headers = {"authorization": f"Bearer {rig.door.key}", **headers}
        async with rig.client.post(rig.door.url + path, data=body, headers=headers) as answer:
            told = await answer.read()
            assert answer.status == 200 or 400 <= answer.status < 500, told
            if answer.status != 200:
                check_shape(dialect, told)
        await until(lambda: rig.admission.requests == 0)
        assert rig.interceptor._bodies.budget.held == 0
        assert rig.trace.open_calls == 0
        return answer.status

    def unharmed(self):
        self.runner.run(self._unharmed())

    async def _unharmed(self):
        async with self.neighbour.post("hello", stream=False) as answer:
            assert DIALECTS["chat"].read_reply(await answer.read()).message.text == "unharmed"


def check_shape(dialect, body):
    """An error as the dialect's own clients expect it."""
    told = json.loads(body)
    error = told["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    assert error["type"]
    assert told.get("type") == ("error" if dialect == "messages" else None)
