"""A box that does as it is told: slow or failing starts, resets that lie, deaths. It isolates nothing."""

import asyncio

from rollwright.runtimes.contract import Reach, RuntimeConfig
from rollwright.runtimes.state import BoxState
from rollwright.wire import RuntimeFault, RuntimeLost


class BoxConfig(RuntimeConfig, frozen=True, kw_only=True, tag_field="kind", tag="scripted-box"):
    image: str = ""
    lifetime_s: float | None = None
    used_once: bool = False

    @property
    def box_lifetime_s(self):
        return self.lifetime_s

    @property
    def reset_is_a_start(self):
        return self.used_once


class ScriptedBox:
    reach = Reach.HOST

    def __init__(self, world, config, number):
        self.world, self.config, self.number = world, config, number
        self.name = f"box-{number}"
        self.files = {}
        self.running = False
        self.stopped = False
        self.resetting = False

    async def start(self):
        await self.world.at("start", self)
        self.running = True

    async def stop(self):
        self.running = False
        await self.world.at("stop", self)
        self.stopped = True

    async def reset(self):
        self.resetting = True
        await self.world.at("reset", self)
        self.files = {path: data for path, data in self.files.items() if path in self.world.sticky}
        self.resetting = False

    async def inspect(self):
        await self.world.at("inspect", self)
        return BoxState(files=dict(self.files))

    async def alive(self):
        await self.world.at("alive", self)
        return self.running

    async def write(self, path, data):
        if not self.running or self.resetting:
            raise RuntimeLost(f"{self.name} is gone")
        await self.world.at("write", self)
        self.files[path] = data.decode()

    async def read(self, path):
        if not self.running or self.resetting:
            raise RuntimeLost(f"{self.name} is gone")
        try:
            return self.files[path].encode()
        except KeyError:
            raise RuntimeFault(f"no file {path}") from None


class World:
    """Makes scripted boxes, and decides what happens to them."""

    def __init__(self):
        self.boxes = []
        self.sticky = set()
        """Paths that a reset leaves in place."""
        self.faults = {}
        """What the next calls of a method meet: a list of errors, events to wait for, or None."""
        self.reached = {}
        self.calls = []

    def make(self, config):
        box = ScriptedBox(self, config, len(self.boxes) + 1)
        self.boxes.append(box)
        return box

    async def at(self, what, box):
        self.calls.append((what, box.number))
        self.reached.setdefault(what, asyncio.Event()).set()
        queued = self.faults.get(what)
        fault = queued.pop(0) if queued else None
        if isinstance(fault, asyncio.Event):
            await fault.wait()
        elif fault is not None:
            raise fault
        else:
            await asyncio.sleep(0)

    async def until(self, what):
        """Wait until some box has come to `what` once more."""
        async with asyncio.timeout(10):
            await self.reached.setdefault(what, asyncio.Event()).wait()
        self.reached[what].clear()

    def all_freed(self):
        return all(box.stopped for box in self.boxes)
