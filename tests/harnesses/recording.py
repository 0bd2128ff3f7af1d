"""Records what published agents send as fixtures, scrubbed: `python -m tests.harnesses.recording [NAME...]`.

Each agent solves the task of `playing` in a sandbox whose only way out leads through a proxy here that keeps its
requests. Run it after a pinned version changes, and read the difference.
"""

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import ClientSession, web

from rollwright.engines.function import FunctionEngine
from rollwright.harnesses import Door, harness_config, make_harness
from rollwright.rollouts import Environment
from rollwright.runtimes import runtime_config

from .playing import OURS, PROMPT, Answer, Nothing, play
from .scrubbing import Scrubber, write

GOLDEN = Path(__file__).parent / "golden"
DIALECTS = {"codex": "responses", "claude-code": "messages", "opencode": "chat", "mini-swe-agent": "chat"}
_HOP = {"host", "content-length", "accept-encoding", "connection", "transfer-encoding"}


class Recorded:
    """A harness whose program talks through the proxy."""

    needs_runtime = needs_door = True

    def __init__(self, inner):
        self.inner = inner
        self.serving = None
        self.requests = []
        inner_drive = inner.drive

        async def drive(runtime, door, model, task):
            async with self._proxy(f"http://127.0.0.1:{self.serving.interceptor.port}") as port:
                url = await runtime.forward(port)
                return await inner_drive(runtime, Door(url, door.key, door.state_key), model, task)

        inner.drive = drive
        self.run = inner.run

    @asynccontextmanager
    async def _proxy(self, target):
        async with ClientSession(auto_decompress=False) as client:

            async def carry(request):
                body = await request.read()
                if body:
                    told = (request.method, request.path_qs, list(request.headers.items()), json.loads(body))
                    self.requests.append(told)
                kept = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
                async with client.request(request.method, target + request.path_qs, data=body, headers=kept) as answer:
                    return web.Response(
                        body=await answer.read(), status=answer.status, content_type=answer.content_type
                    )

            runner = web.ServerRunner(web.Server(carry))
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            try:
                yield runner.addresses[0][1]
            finally:
                await runner.cleanup()


async def record(agent):
    harness = Recorded(make_harness(harness_config(agent)))
    environment = Environment(Nothing(), harness=harness, runtime=runtime_config("sandbox", {}))
    async with environment.serving(FunctionEngine(play), "scripted") as serving:
        harness.serving = serving
        trace = await serving.run(Answer(id="answer", prompt=PROMPT))
    if trace.failure is not None or trace.reward != 1.0:
        raise SystemExit(f"{agent} did not solve its task: {trace.failure}")
    scrubber = Scrubber(OURS)
    requests = [scrubber.request(*told) for told in harness.requests]
    version = getattr(harness.inner, "version", "") or version_in_script()
    write(GOLDEN / f"{agent}.json", agent, version, DIALECTS[agent], requests)
    print(f"{agent} {version}: {len(requests)} requests", flush=True)


def version_in_script():
    from rollwright.harnesses.mini_swe import SCRIPT

    return SCRIPT.read_text().partition("mini-swe-agent==")[2].partition('"')[0]


async def main(names):
    for name in names or DIALECTS:
        await record(name)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
