"""A worker for shared calls from outside: asked one thing at a time, killed when it takes too long.

An answer carries the id of its question; a worker that was not waited for is ended, so that nobody hears it late.
"""

from __future__ import annotations

import asyncio
import os
import struct
import weakref

from . import channel
from .zygotes import Offspring, Unwarm, Zygote

_LENGTH = struct.Struct("!I")
_INLINE = 60_000


class Worker:
    """A child of a zygote that keeps answering. `broken` is set when it cannot be asked again."""

    def __init__(self, zygote: Zygote) -> None:
        self.zygote = zygote
        self.broken = False
        self._asked = 0
        self._answer: asyncio.Future[bytes] | None = None
        self._sock, theirs = channel.pair()
        try:
            self._offspring: Offspring = zygote.fork_worker(theirs.fileno())
        except BaseException:
            self._sock.close()
            raise
        finally:
            theirs.close()
        self._end = weakref.finalize(self, self._sock.close)
        asyncio.get_running_loop().add_reader(self._sock.fileno(), _hear_weakly, weakref.ref(self))

    async def ask(self, body: bytes, timeout_s: float) -> tuple[bytes, bytes]:
        """What `main` prints on stdout and stderr. TimeoutError at the deadline, Unwarm where it has no answer."""
        loop = asyncio.get_running_loop()
        self._asked += 1
        self._answer = answer = loop.create_future()
        deadline = loop.call_later(timeout_s, _give_up, answer)
        try:
            self._send(body)
            said = await answer
        except BaseException as error:
            if not isinstance(error, Unwarm) or self.broken:
                self.close()
            raise
        finally:
            deadline.cancel()
            self._answer = None
        size = _LENGTH.unpack_from(said)[0] + _LENGTH.size
        return said[_LENGTH.size : size], said[size:]

    def close(self) -> None:
        """End it, whatever it does."""
        if self._end.detach() is not None:
            self.broken = True
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            self._sock.close()
            self._offspring.kill_group()
            self._offspring.release()

    def hear(self) -> None:
        for packet in channel.packets(self._sock):
            kind, call, body = packet or (b"", 0, b"")
            self.broken = self.broken or packet is None
            if self._answer is None or self._answer.done():
                continue
            if packet is None:
                self._answer.set_exception(Unwarm("worker died"))
            elif call == self._asked and kind == b"A":
                self._answer.set_result(body)
            elif call == self._asked:
                self._answer.set_exception(Unwarm(body.decode("utf-8", "replace")))
        if self.broken:
            self.close()

    def _send(self, body: bytes) -> None:
        fd = -1
        try:
            if len(body) > _INLINE:
                fd = channel.nameless_file(body)
                channel.send(self._sock, b"R", self._asked, [fd])
            else:
                channel.send(self._sock, b"R", self._asked, (), body)
        except (channel.ChannelFull, OSError) as error:
            self.broken = True
            raise Unwarm("worker died") from error
        finally:
            if fd >= 0:
                os.close(fd)


def _give_up(answer: asyncio.Future[bytes]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())


def _hear_weakly(worker: weakref.ref[Worker]) -> None:
    target = worker()
    if target is not None and not target.broken:
        target.hear()
