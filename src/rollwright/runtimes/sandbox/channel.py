"""The owner's end of a conversation with the warden about one box: requests, their answers, and news of ended programs.

Requests overlap and are matched by number. A channel that ends fails every request that waits, at once.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from rollwright.wire import RuntimeFault, RuntimeLost

_MESSAGE_LIMIT = 65536
_ANSWER_S = 60.0
_IN_FLIGHT = 32

Answer = tuple[dict[str, Any], list[int]]


class Channel:
    """Belongs to the loop it is made on. `on_exit(program, status)` hears of programs that end."""

    def __init__(self, link: socket.socket) -> None:
        link.setblocking(False)
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._exits: dict[int, Callable[[int], None]] = {}
        self.turns = asyncio.Semaphore(_IN_FLIGHT)
        """Held around `begin` and `wait`: more requests than these would not fit into the socket."""
        self._count = 0
        self._loop.add_reader(link.fileno(), self._on_readable)

    async def ask(self, op: str, fds: Sequence[int] = (), **fields: Any) -> Answer:
        """The warden's answer; RuntimeFault where it could not, RuntimeLost where it is gone."""
        async with self.turns:
            return await self.wait(self.begin(op, fds, **fields)[1], op)

    def begin(self, op: str, fds: Sequence[int] = (), **fields: Any) -> tuple[int, asyncio.Future[Answer]]:
        """Send a request; its number, and what is to be waited for."""
        self._count += 1
        number = self._count
        future = self._asked[number] = self._loop.create_future()
        try:
            self._send({"id": number, "op": op, **fields}, fds)
        except BaseException:
            self._asked.pop(number, None)
            raise
        return number, future

    async def opened(self) -> Answer:
        """What becomes of the box itself: it is the first request, and came to the warden with the channel."""
        self._count = 1
        future = self._asked[1] = self._loop.create_future()
        return await self.wait(future, "open")

    async def wait(self, future: asyncio.Future[Answer], op: str) -> Answer:
        """What `begin` promised; what nobody waits for any more is closed when it comes."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                # Not cancelled with its caller: descriptors that still arrive must find somebody who closes them.
                reply, fds = await asyncio.shield(future)
        except BaseException as error:
            future.add_done_callback(_drop)
            if isinstance(error, TimeoutError):
                raise RuntimeFault(f"the sandbox did not {op} within {_ANSWER_S:g} s") from error
            raise
        if reply["error"]:
            raise RuntimeFault(f"the sandbox could not {op}: {reply['error']}")
        return reply, fds

    async def quiet(self) -> None:
        """Wait until every request that was sent is answered."""
        if self._asked:
            await asyncio.wait(list(self._asked.values()), timeout=_ANSWER_S)

    @property
    def closed(self) -> bool:
        return self._link.fileno() < 0

    def watch(self, program: int, on_exit: Callable[[int], None]) -> None:
        """Hear how `program` ends; the number is that of the request that started it."""
        self._exits[program] = on_exit

    def reap(self, program: int) -> None:
        """Let go of an ended program."""
        self._exits.pop(program, None)
        if not self.closed:
            with suppress(RuntimeFault):
                self._send({"id": 0, "op": "reap", "program": program}, ())

    def close(self) -> None:
        if self.closed:
            return
        self._loop.remove_reader(self._link.fileno())
        self._link.close()
        waiting, self._asked = self._asked, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(RuntimeLost("the sandbox is gone"))
                future.exception()  # Somebody may have stopped waiting.
        exits, self._exits = self._exits, {}
        for on_exit in exits.values():
            on_exit(-9)

    def _send(self, message: dict[str, Any], fds: Sequence[int]) -> None:
        if self.closed:
            raise RuntimeLost("the sandbox is gone")
        try:
            socket.send_fds(self._link, [msgspec.json.encode(message)], list(fds))
        except OSError as error:
            self.close()
            raise RuntimeLost(f"the sandbox does not listen: {error}") from error

    def _on_readable(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._link, _MESSAGE_LIMIT, 8)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if not data:
            self.close()
            return
        message = msgspec.json.decode(data, type=dict[str, Any])
        if "ended" in message:
            on_exit = self._exits.pop(message["ended"], None)
            if on_exit is not None:
                on_exit(message["status"])
            return
        future = self._asked.pop(message["id"], None)
        if future is not None and not future.done():
            future.set_result((message, list(fds)))
        else:
            _close_all(fds)


def _drop(future: asyncio.Future[Answer]) -> None:
    if not future.cancelled() and future.exception() is None:
        _close_all(future.result()[1])


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def in_memory(data: bytes) -> int:
    """A file in memory that holds `data`, for what is too long for a message. The caller closes it."""
    fd = os.memfd_create("rollwright")
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd
