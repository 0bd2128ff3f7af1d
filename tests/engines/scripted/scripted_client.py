"""A plain client of the scripted engine: one call in one dialect, whole or streamed."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp

from rollwright.dialects import DIALECTS, ImageStore
from rollwright.engines.scripted import ScriptedServer, read_log
from rollwright.wire import ModelCall, assistant, reply_of


class Answered(Exception):
    """An answer that is no 200."""

    def __init__(self, status, message, headers):
        super().__init__(f"{status}: {message}")
        self.status, self.message, self.headers = status, message, headers


class Client:
    def __init__(self, base_url, session):
        self.base_url, self.session = base_url, session

    async def ask(self, call: ModelCall, dialect="chat", key=""):
        speaks = DIALECTS[dialect]
        body = speaks.write_request(call, ImageStore())
        headers = {"content-type": "application/json", **speaks.headers(key)}
        async with self.session.post(self.base_url + speaks.path, data=body, headers=headers) as response:
            if response.status != 200:
                raise Answered(
                    response.status, speaks.read_error(response.status, await response.read()), response.headers
                )
            if not call.stream:
                return speaks.read_reply(await response.read())
            reader, events = speaks.stream_reader(), []
            async for chunk in response.content.iter_any():
                events += reader.feed(chunk)
            reader.close()
            return reply_of(events)

    async def get(self, path):
        async with self.session.get(self.base_url + path) as response:
            return await response.json()

    async def log(self):
        async with self.session.get(self.base_url + "/scripted/log") as response:
            return read_log(await response.read())


@contextlib.asynccontextmanager
async def client_of(server):
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield Client(server.base_url, session)


@contextlib.asynccontextmanager
async def served(config, policy=None):
    async with ScriptedServer(config, policy) as server, client_of(server) as client:
        yield server, client


def says(text):
    """A policy that always says the same."""
    return lambda call, rng: assistant(text)


async def until(true, within_s=20):
    """Waits for what no event tells, such as the end of a process that is not our child."""
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.001)
