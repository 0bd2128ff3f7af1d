"""`rollwright serve`: an environment behind a broker, until it is told to stop. Its address lies in a file that only
its owner may read."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from rollwright import telemetry
from rollwright.serve import Address, BrokerSettings, Server, SlotSettings, serving
from rollwright.serve.environments import HOST
from rollwright.serve.ray.settings import RaySettings
from rollwright.wire import UsageError

from .addresses import Announcement, read_keys
from .resolve import resolve
from .serve_state import State
from .served import environment_spec
from .settings import RolloutSettings, check_count, check_reachable
from .talk import Talk, result

LOOK_S = 0.5


class ServeSettings(RolloutSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Serve an environment to clients, with worker processes behind a broker."""

    workers: int = 2
    """Worker processes that the launcher starts. Others may join; with 0 all of them do."""
    capacity: int = 64
    """Rollouts at once in each worker."""
    launcher: Literal["local", "ray"] = "local"
    """Who starts workers: local makes them processes of this machine, ray puts them on the nodes of a Ray cluster."""
    address: str = ""
    """tcp://HOST:PORT to serve other machines, encrypted. Empty: sockets in a private directory of this machine."""
    advertise: str = ""
    """The host name that others reach this machine by, where the address is one that only it can listen on."""
    keys: str = ""
    """The file server-keys.json that `rollwright keys` wrote. Empty: fresh ones, which server.json tells."""
    window: int = 4096
    """Rollouts that one client may have in the broker at once."""
    queue: int = 65536
    """Rollouts that may wait in the broker, over all clients."""
    io_threads: int = 4
    """Threads of the broker's sockets over TCP, which encrypt and decrypt, each for its share of the peers."""
    output: str = ""
    """Directory for server.json, which holds the address and its token. Empty: serve/TASKSET."""
    return_tokens: bool = False
    """Ask the engine for token ids, as training needs them."""
    slots: SlotSettings = SlotSettings()
    """How patient the broker is with its workers."""
    ray: RaySettings = RaySettings()
    """How workers are laid out on a Ray cluster."""

    verb: ClassVar[str] = "serve"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers < 0:
            raise UsageError(f"workers is {self.workers}; set it to 0 or more")
        check_reachable(self.launcher, self.address, self.keys, self.advertise)
        for name in ("capacity", "window", "queue", "io_threads"):
            check_count(name, "--" + name.replace("_", "-"), getattr(self, name))


def main(argv: Sequence[str], talk: Talk) -> int:
    resolved = resolve(ServeSettings, argv)
    if resolved is None:
        return 0
    settings = resolved.settings
    engine = resolved.engine_config(tokens=settings.return_tokens)
    broker = BrokerSettings(
        workers=settings.workers,
        capacity=settings.capacity,
        host=HOST,
        options=environment_spec(settings, resolved.taskset_name, engine, tokens=settings.return_tokens).encode(),
        window=settings.window,
        queue=settings.queue,
        io_threads=settings.io_threads,
        slots=settings.slots,
    )
    if settings.dry_run:
        result(msgspec.json.format(msgspec.json.encode(broker)).decode())
        return 0
    place = Path(settings.output or f"serve/{resolved.taskset_name}")
    return telemetry.run(_serve(settings, broker, place, talk))


async def _serve(settings: ServeSettings, broker: BrokerSettings, place: Path, talk: Talk) -> int:
    stopped = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stopped.set)
    keys = await asyncio.to_thread(read_keys, settings.keys) if settings.keys else None
    async with (
        serving(
            broker,
            address=settings.address,
            advertise=settings.advertise,
            keys=keys,
            launcher=settings.launcher,
            launcher_options=msgspec.json.encode(settings.ray).decode(),
        ) as server,
        _announced(place, server.address) as file,
    ):
        talk.say(f"The address is in {file}; Ctrl+C stops.")
        if settings.json:
            result(msgspec.json.encode({"address_file": str(file), "pid": os.getpid()}).decode())
        await _watch(server, stopped, talk)
        if server.failure:
            talk.say(f"Error: {server.failure}")
            return 1
    return 0


@asynccontextmanager
async def _announced(place: Path, address: Address) -> AsyncIterator[Path]:
    announcement = await asyncio.to_thread(Announcement, place, address)
    try:
        yield announcement.file
    finally:
        await asyncio.to_thread(announcement.withdraw)


async def _watch(server: Server, stopped: asyncio.Event, talk: Talk) -> None:
    """Say how it goes until somebody stops it, or nothing is left to serve."""
    state = State()
    ends = [asyncio.create_task(wait) for wait in (stopped.wait(), server.until_over())]
    try:
        done: set[asyncio.Task[Any]] = set()
        while not done:
            if words := state.look(server.seen, asyncio.get_running_loop().time()):
                talk.say(words)
            done, _ = await asyncio.wait(ends, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in ends:
            task.cancel()
