"""A server of one environment: a broker process with its workers, watched by the process that wants them.

The broker is a child and dies with us; its workers are its children and die with it. When it dies alone, or falls
silent, it is started again at the same address and with as many workers as it had been told to have, and clients that
wait there go on. What it says, and what its workers say, goes to our log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from rollwright.engines.child import Child
from rollwright.wire import UsageError

from .client import EnvClient
from .local import moves
from .protocol import ServerLost, Unserved
from .settings import ORDER, BrokerOrder, BrokerSettings, Listens, Notes, Scaled, Unusable
from .slots import Phase, Record
from .wiring import Address, Keys, local_locks, tcp_locks

log = logging.getLogger("rollwright.serve")

START_TIMEOUT_S = 120.0
START_TRIES = 3
MAX_RESTARTS = 5
LOG_LINES = 20
BACKOFF_S, MAX_BACKOFF_S = 0.1, 1.0
NOTES_WAIT_S = 5.0
ASK_EVERY_S = 0.5
MISSED_ANSWERS = 5
"""So many in a row, each waited for two seconds, and the broker is away."""


class SeenWorker(msgspec.Struct, frozen=True):
    name: str
    phase: Phase


class Sight(msgspec.Struct, frozen=True):
    """What the broker said of itself when it was last asked."""

    failing: str = ""
    wanted: int = 0
    """Workers that it is to have, besides those who join."""
    workers: tuple[SeenWorker, ...] = ()

    @property
    def ready(self) -> int:
        return sum(worker.phase is Phase.READY for worker in self.workers)


class Server:
    """Made by `serving()`."""

    def __init__(self, order: BrokerOrder, max_restarts: int = MAX_RESTARTS) -> None:
        self._order = order
        # The broker's deaths are forgiven as those of workers are.
        patience = {"max_restarts": max_restarts, "backoff_s": BACKOFF_S, "max_backoff_s": MAX_BACKOFF_S}
        self._record = Record(msgspec.structs.replace(order.settings.slots, **patience))
        self._child: Child | None = None
        self._notes: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self.restarts = 0
        self.seen = Sight(wanted=order.settings.workers)
        self.failure = ""
        """Why nothing is served any more; empty while there is hope."""

    @property
    def address(self) -> Address:
        return self._order.locks.address

    @property
    def broker_pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    async def open(self) -> None:
        await self._start_surely()
        self._watching = asyncio.create_task(self._watch(), name="broker watch")

    async def until_over(self) -> None:
        """Wait until there is a `failure`."""
        await self._over.wait()

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._child is not None and self._child.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5.0):
                    await self._child.died()
        if self._child is not None:
            await self._end_child()

    async def _end_child(self) -> None:
        """Whatever it had said is heard first."""
        assert self._child is not None
        await self._child.end()
        if self._notes is not None:
            with contextlib.suppress(TimeoutError, ServerLost):
                async with asyncio.timeout(NOTES_WAIT_S):
                    await self._notes

    async def _start_surely(self) -> None:
        """A broker that somebody killed before it could speak is started again; one that gave up by itself is not."""
        for _ in range(START_TRIES - 1):
            try:
                return await self._start()
            except ServerLost:
                if self._child is None or not self._child.killed:
                    raise
        return await self._start()

    async def _start(self) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rollwright.serve.broker_process",
            str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, ORDER: msgspec.json.encode(self._order).decode()},
        )
        self._child = Child(process, "broker", log_lines=LOG_LINES, heard=_pass_on)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                line = await process.stdout.readline()
        except TimeoutError as error:
            await self._child.end()
            raise ServerLost(f"the broker did not start within {START_TIMEOUT_S:g} s") from error
        if not line:
            await self._child.died()
            raise ServerLost(f"{self._child.obituary()}")
        self._note(line)
        self._notes = asyncio.create_task(self._hear_notes(process.stdout), name="notes of the broker")

    async def _hear_notes(self, stdout: asyncio.StreamReader) -> None:
        while line := await stdout.readline():
            self._note(line)

    def _note(self, line: bytes) -> None:
        try:
            note: Notes = msgspec.json.decode(line, type=Notes)
        except msgspec.DecodeError as error:
            raise ServerLost(f"the broker wrote what is no note: {error}") from error
        if isinstance(note, Unusable):
            raise UsageError(note.why)
        order = self._order
        if isinstance(note, Listens):
            # The ports that were free at the first start are the address of every later one.
            locks = msgspec.structs.replace(order.locks, address=note.address)
            self._order = msgspec.structs.replace(order, locks=locks)
        elif isinstance(note, Scaled):
            settings = msgspec.structs.replace(order.settings, workers=note.workers)
            self._order = msgspec.structs.replace(order, settings=settings)

    async def _watch(self) -> None:
        """Start it again whenever it ends or falls silent, so often and no more."""
        while not self.failure:
            began = asyncio.get_running_loop().time()
            await self._until_gone(began)
            if not self.failure:
                assert self._child is not None
                words = self._child.obituary() or "the broker fell silent"
                log.warning("the broker %s and is started again", "fell silent" if self._child.alive else "died")
                await self._end_child()
                await self._start_again(words)

    async def _start_again(self, words: str) -> None:
        while True:
            pause_s = self._record.add()
            if self._record.spent:
                return self._fail(f"{words}; it was started again {self._record.deaths - 1} times in a row")
            self.restarts += 1
            await asyncio.sleep(pause_s)
            try:
                return await self._start()
            except (ServerLost, UsageError, OSError) as error:
                words = f"the broker could not be started again: {error}"
                log.warning("%s", words)

    def _fail(self, why: str) -> None:
        self.failure = why
        self._over.set()

    async def _until_gone(self, began: float) -> None:
        """Until it is dead, silent, or has said that nothing will ever run there."""
        assert self._child is not None
        dying = asyncio.create_task(self._child.died(), name="broker death")
        silence = asyncio.create_task(self._until_silent(began), name="broker silence")
        try:
            await asyncio.wait({dying, silence}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (dying, silence):
                task.cancel()
            await asyncio.gather(dying, silence, return_exceptions=True)

    async def _until_silent(self, began: float) -> None:
        """Ask it for its status until it does not answer: a stopped process is as good as a dead one. One that is only
        slow, on a machine that has too much to do, is given more time."""
        missed = 0
        client = EnvClient(self.address, ready_timeout_s=0.0)
        await client.connect()
        try:
            while not self.failure and missed < MISSED_ANSWERS and (not missed or moves(self.broker_pid)):
                try:
                    self.seen = msgspec.convert(await client.ask("status", timeout_s=2.0), Sight)
                except Unserved:
                    missed += 1
                    continue
                missed = 0
                self._record.well(asyncio.get_running_loop().time() - began)
                if self.seen.failing:
                    self._fail(self.seen.failing)
                await asyncio.sleep(ASK_EVERY_S)
        finally:
            await client.close()


def _pass_on(lines: str) -> None:
    """The broker says what is worth a warning, and its workers say what they like to stderr."""
    log.warning("%s", lines)


@asynccontextmanager
async def serving(
    settings: BrokerSettings,
    *,
    address: str = "",
    advertise: str = "",
    keys: Keys | None = None,
    launcher: str = "local",
    launcher_options: str = "{}",
    max_restarts: int = MAX_RESTARTS,
) -> AsyncIterator[Server]:
    """A running server until the block ends. `address` is `tcp://HOST:PORT`, or empty for this machine alone; peers
    are told `advertise` instead of HOST where that is given. A broker that died more than `max_restarts` times without
    health in between is not started again."""
    directory: Path | None = None
    if address:
        locks = tcp_locks(*host_and_port(address), advertise=advertise, keys=keys)
    else:
        directory = Path(tempfile.mkdtemp(prefix="rollwright-"))
        locks = local_locks(directory)
    server = Server(BrokerOrder(settings, locks, launcher, launcher_options), max_restarts)
    try:
        await server.open()
        yield server
    finally:
        await server.close()
        if directory is not None:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not address.startswith("tcp://") or not host or not port.isdecimal() or int(port) > 65533:
        raise UsageError(f"an address is tcp://HOST:PORT, with the next two ports free as well; got {address!r}")
    return host, int(port)
