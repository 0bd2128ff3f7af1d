"""A worker that nobody here started: it finds a server, asks what is served there, and serves it until told to go.

It is one process, which is what Kubernetes and Slurm start, watch and end. When the server falls silent, or has given
this worker up, everything under way is dropped (the server runs it elsewhere) and the worker arrives anew, under
another number, until its patience ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import time
from typing import Any

import msgspec
import zmq

from .client import EnvClient
from .hosting import Host, find_host
from .launching import GUEST, WorkerOrder
from .protocol import ServerLost, Unserved
from .wiring import Address
from .worker import Worker

log = logging.getLogger("rollwright.serve.joining")

ASK_TIMEOUT_S = 2.0


class _Served(msgspec.Struct, frozen=True):
    """What the server says of its workers."""

    host: str
    options: str
    capacity: int
    stall_limit_s: float


async def join(address: Address, *, capacity: int = 0, patience_s: float = 300.0) -> None:
    """Work for the server at `address` until SIGTERM or an order to leave, and finish what is here first. `capacity`
    0 takes the server's own number. ServerLost when nobody has answered for `patience_s`, or we are turned away."""
    served = await _asked(address, patience_s)
    order = WorkerOrder(
        GUEST,
        0,
        address.encode(),
        served.host,
        served.options,
        capacity or served.capacity,
        served.stall_limit_s,
    )
    context: Any = zmq.Context()
    try:
        async with find_host(order.host)(order.options) as host:
            await _Guest(order, host, context, patience_s).stay()
    finally:
        await asyncio.to_thread(context.destroy, 2000)


async def _asked(address: Address, patience_s: float) -> _Served:
    client = EnvClient(address, patience_s=patience_s)
    await client.connect()
    until = time.monotonic() + patience_s
    try:
        while True:
            try:
                return msgspec.convert(await client.ask("served", timeout_s=ASK_TIMEOUT_S), _Served)
            except Unserved as error:
                if client.refused:
                    raise ServerLost("the server turned us away: the token is not this server's") from error
                if time.monotonic() > until:
                    raise ServerLost(f"nobody answers at {address.front}") from error
    finally:
        await client.close()


class _Guest:
    def __init__(
        self, order: WorkerOrder, host: Host, context: zmq.Context[zmq.Socket[bytes]], patience_s: float
    ) -> None:
        self._order = order
        self._host = host
        self._context = context
        self._patience_s = patience_s
        self._worker: Worker | None = None
        self._stopping = False

    async def stay(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop)
        try:
            await self._live_on()
        finally:
            with contextlib.suppress(RuntimeError):
                loop.remove_signal_handler(signal.SIGTERM)

    async def _live_on(self) -> None:
        """One life after the other, each with its own number and socket: what an earlier one still says reaches
        nobody."""
        until = time.monotonic() + self._patience_s
        while not self._stopping:
            order = msgspec.structs.replace(self._order, life=secrets.randbits(48))
            self._worker = worker = Worker(order, self._host, self._context)
            left = await worker.serve()
            if worker.refused:
                raise ServerLost(f"the server turned us away: {worker.refused}")
            if left:
                return
            if worker.proven:
                until = time.monotonic() + self._patience_s
            if time.monotonic() > until:
                raise ServerLost(f"the server has been silent for {self._patience_s:g} s")
            log.warning("the server is silent, or has given this worker up; arriving anew")

    def _stop(self) -> None:
        self._stopping = True
        if self._worker is not None:
            self._worker.leave()
