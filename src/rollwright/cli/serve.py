"""`rollwright serve`: an environment behind a broker, until it is told to stop. Its address lies in a file that only
its owner may read."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import msgspec

from rollwright import telemetry
from rollwright.serve import Address, BrokerSettings, SlotSettings, serving
from rollwright.serve.environments import HOST
from rollwright.wire import UsageError

from .resolve import resolve
from .served import environment_spec
from .settings import RolloutSettings, check_count
from .talk import Talk, result

ADDRESS_FILE = "server.json"


class ServeSettings(RolloutSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Serve an environment to clients, with worker processes behind a broker."""

    workers: int = 2
    """Worker processes."""
    capacity: int = 64
    """Rollouts at once in each worker."""
    launcher: Literal["local"] = "local"
    """Who starts workers: local makes them processes of this machine."""
    address: str = ""
    """tcp://HOST:PORT to serve other machines, encrypted. Empty: sockets in a private directory of this machine."""
    output: str = ""
    """Directory for server.json, which holds the address and its token. Empty: serve/TASKSET."""
    return_tokens: bool = False
    """Ask the engine for token ids, as training needs them."""
    slots: SlotSettings = SlotSettings()
    """How patient the broker is with its workers."""

    verb: ClassVar[str] = "serve"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("workers", "--workers", self.workers)
        check_count("capacity", "--capacity", self.capacity)


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
        slots=settings.slots,
    )
    if settings.dry_run:
        result(msgspec.json.format(msgspec.json.encode(broker)).decode())
        return 0
    place = Path(settings.output or f"serve/{resolved.taskset_name}")
    return telemetry.run(_serve(settings, broker, place / ADDRESS_FILE, talk))


async def _serve(settings: ServeSettings, broker: BrokerSettings, file: Path, talk: Talk) -> int:
    stopped = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stopped.set)
    async with serving(broker, address=settings.address) as server:
        await asyncio.to_thread(write_address, file, server.address)
        talk.say(f"Serving with {settings.workers} workers. The address is in {file}; Ctrl+C stops.")
        if settings.json:
            result(msgspec.json.encode({"address_file": str(file), "pid": os.getpid()}).decode())
        try:
            while not stopped.is_set() and not server.failure:
                await _wait(stopped, 0.5)
        finally:
            await asyncio.to_thread(file.unlink, missing_ok=True)
        if server.failure:
            talk.say(f"Error: {server.failure}")
            return 1
    return 0


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def write_address(file: Path, address: Address) -> None:
    """Readable by its owner only, from its first byte on."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(address.encode())
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}; name another directory with -o") from error


def read_address(place: str) -> Address:
    """The address in a file, or in the directory that `serve` wrote it to."""
    path = Path(place)
    path = path / ADDRESS_FILE if path.is_dir() else path
    try:
        return Address.decode(path.read_text())
    except OSError as error:
        raise UsageError(f"no server has left its address in {path} ({error.strerror}); is it running?") from error
