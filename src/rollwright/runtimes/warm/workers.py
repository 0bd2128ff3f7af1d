"""A worker for shared calls from outside: it is sent one call after the other and answers them in that order.

An answer carries the id of its question. A worker that was not waited for is ended, so that nobody hears it late. Who
waits for what, and until when, is in crew.py.
"""

from __future__ import annotations

import asyncio
import os
import struct
import weakref
from collections.abc import Callable

from . import channel
from .zygotes import Offspring, Unwarm, Zygote

_LENGTH = struct.Struct("!I")
_INLINE = 60_000


class Worker:
    """A child of a zygote that keeps answering. `broken` is set when it cannot be asked again.

    `on_answer` gets what `main` printed on stdout and stderr, or Unwarm where there is no answer.
    """

    def __init__(self, zygote: Zygote) -> None:
        self.zygote = zygote
        self.broken = False
        self.asked = 0
        self.on_answer: Callable[[tuple[bytes, bytes] | Unwarm], None] | None = None
        self._answered = 0
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

    def send(self, body: bytes) -> bool:
        """One more call; False where it has to wait until an answer was heard. Unwarm where nobody is there."""
        fd = -1
        try:
            if len(body) > _INLINE:
                fd = channel.nameless_file(body)
                channel.send(self._sock, b"R", self.asked + 1, [fd])
            else:
                channel.send(self._sock, b"R", self.asked + 1, (), body)
        except channel.ChannelFull:
            return False
        except OSError as error:
            raise Unwarm("worker died") from error
        finally:
            if fd >= 0:
                os.close(fd)
        self.asked += 1
        return True

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
            if packet is None:
                self.close()
                self._tell(Unwarm("worker died"))
                return
            kind, call, body = packet
            if call != self._answered + 1:
                continue
            self._answered = call
            if kind == b"A":
                size = _LENGTH.unpack_from(body)[0] + _LENGTH.size
                self._tell((body[_LENGTH.size : size], body[size:]))
            else:
                self._tell(Unwarm(body.decode("utf-8", "replace")))
            if self.broken:
                return

    def _tell(self, answer: tuple[bytes, bytes] | Unwarm) -> None:
        if self.on_answer is not None:
            self.on_answer(answer)


def _hear_weakly(worker: weakref.ref[Worker]) -> None:
    target = worker()
    if target is not None and not target.broken:
        target.hear()
