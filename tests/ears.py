"""Listeners for tests: one that keeps all that it hears, and streams turned around, from told to asked for and back."""

import asyncio
from contextlib import aclosing

from rollwright.wire import End, EngineUnavailable


class Keeping:
    """Hears everything, takes everything."""

    def __init__(self):
        self.events = []

    def hear(self, delta):
        self.events.append(delta)
        return True

    async def ready(self):
        raise AssertionError("it was never full")


class _Handing(Keeping):
    """Takes one event at a time."""

    def __init__(self):
        super().__init__()
        self.handed = asyncio.Queue()
        self._free = asyncio.Event()

    def hear(self, delta):
        self.handed.put_nowait(delta)
        self._free.clear()
        return False

    async def ready(self):
        await self._free.wait()

    def go_on(self):
        self._free.set()


async def events_from(engine, call):
    """All events of a stream, its end last."""
    ear = Keeping()
    end = await engine.stream(call, ear)
    return [*ear.events, end]


async def asked_for(stream):
    """The events of `stream(ear)`, each when it is asked for. Closing early cancels the call."""
    ear = _Handing()

    async def run():
        try:
            ear.handed.put_nowait(await stream(ear))
        except Exception as error:
            ear.handed.put_nowait(error)

    running = asyncio.create_task(run())
    try:
        while True:
            event = await ear.handed.get()
            if isinstance(event, Exception):
                raise event
            yield event
            if isinstance(event, End):
                return
            ear.go_on()
    finally:
        running.cancel()
        await asyncio.wait([running])


async def played(events, ear):
    """Tell an ear the events of a generator, as an engine does. One that has told its end is not cancelled."""
    end = None
    async with aclosing(events):
        async for event in events:
            if isinstance(event, End):
                end = event
            elif not ear.hear(event):
                await ear.ready()
    if end is None:
        raise EngineUnavailable("the stream was cut before its end")
    return end
