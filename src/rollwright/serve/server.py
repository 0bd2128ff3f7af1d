"""A server of one environment: a broker process with its workers, watched by the process that wants them.

The broker is a child and dies with us; its workers are its children and die with it. When it dies alone, or falls
silent, it is started again at the same address, and clients that wait there go on.
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
from .settings import ORDER, BrokerOrder, BrokerSettings
from .wiring import Address, Keys, local_locks, tcp_locks

log = logging.getLogger("rollwright.serve")

START_TIMEOUT_S = 120.0
START_TRIES = 3
MAX_RESTARTS = 5
LOG_LINES = 200
MAX_PAUSE_S = 1.0
MISSED_ANSWERS = 5
"""So many in a row, each waited for two seconds, and the broker is away."""


class Server:
    """Made by `serving()`."""

    def __init__(self, order: BrokerOrder, max_restarts: int = MAX_RESTARTS) -> None:
        self._order = order
        self._max_restarts = max_restarts
        self._child: Child | None = None
        self._watching: asyncio.Task[None] | None = None
        self.restarts = 0
        self.failure = ""
        """Why there is no broker any more; empty while there is one."""

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

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5.0):
                    await self._child.died()
            await self._child.end()

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
        self._child = Child(process, "broker", log_lines=LOG_LINES)
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
        # The ports that were free at the first start are the address of every later one.
        address = Address.decode(line.decode())
        self._order = msgspec.structs.replace(
            self._order, locks=msgspec.structs.replace(self._order.locks, address=address)
        )

    async def _watch(self) -> None:
        """Start it again whenever it ends or falls silent, so often and no more."""
        assert self._child is not None
        while True:
            await self._until_gone()
            words = self._child.obituary() or "the broker fell silent"
            await self._child.end()
            while not await self._restarted():
                if self.restarts >= self._max_restarts:
                    self.failure = f"{words}; it was started again {self.restarts} times"
                    log.error("%s", self.failure)
                    return

    async def _restarted(self) -> bool:
        if self.restarts >= self._max_restarts:
            return False
        self.restarts += 1
        await asyncio.sleep(min(0.05 * 2**self.restarts, MAX_PAUSE_S))
        try:
            await self._start()
        except ServerLost as error:
            log.warning("the broker could not be started again: %s", error)
            return False
        return True

    async def _until_gone(self) -> None:
        assert self._child is not None
        dying = asyncio.create_task(self._child.died(), name="broker death")
        silence = asyncio.create_task(self._until_silent(), name="broker silence")
        try:
            await asyncio.wait({dying, silence}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (dying, silence):
                task.cancel()
            await asyncio.gather(dying, silence, return_exceptions=True)

    async def _until_silent(self) -> None:
        """Ask it for its status until it does not answer: a stopped process is as good as a dead one. One that is only
        slow, on a machine that has too much to do, is given more time."""
        missed = 0
        client = EnvClient(self.address, ready_timeout_s=0.0)
        await client.connect()
        try:
            while missed < MISSED_ANSWERS and (not missed or moves(self.broker_pid)):
                try:
                    await client.ask("status", timeout_s=2.0)
                    missed = 0
                    await asyncio.sleep(0.5)
                except Unserved:
                    missed += 1
        finally:
            await client.close()


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
    are told `advertise` instead of HOST where that is given. A broker that died more than `max_restarts` times is not
    started again."""
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
