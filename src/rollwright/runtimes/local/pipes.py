"""The ends of pipes that this process keeps, driven by the event loop. No tasks, no threads, no buffers without a size.

Readers are registered with `add_reader`, which asyncio and uvloop both offer; each callback reads once, so that one
loud program does not starve the others.
"""

from __future__ import annotations

import asyncio
import os

_CHUNK = 65536


class Collector:
    """Reads a pipe to its end, keeps the first `limit` bytes and counts the rest."""

    def __init__(self, fd: int, limit: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._room = max(limit, 0)
        self._kept: list[bytes] = []
        self.dropped = 0
        self.eof: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(fd, self._on_readable)

    def data(self) -> bytes:
        return b"".join(self._kept)

    def drain(self) -> None:
        """Take what the pipe holds right now."""
        while self._fd >= 0 and self._read_once():
            pass

    def close(self) -> None:
        if self._fd < 0:
            return
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1
        if not self.eof.done():
            self.eof.set_result(None)

    def _on_readable(self) -> None:
        if self._fd >= 0:
            self._read_once()

    def _read_once(self) -> bool:
        try:
            chunk = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self.close()
            return False
        kept = chunk[: self._room]
        if kept:
            self._kept.append(kept)
            self._room -= len(kept)
        self.dropped += len(chunk) - len(kept)
        return True


class Puller:
    """Reads a pipe only when asked: the pipe itself is the buffer, so a slow reader slows the program."""

    def __init__(self, fd: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._ended = False
        self._wake: asyncio.Future[None] | None = None

    async def read(self, limit: int) -> bytes:
        """The next bytes, at most `limit`; b"" at the end. One reader at a time."""
        if self._wake is not None:
            raise RuntimeError("another read of this stream is waiting")
        while self._fd >= 0 and not self._ended:
            try:
                chunk = os.read(self._fd, min(max(limit, 1), _CHUNK))
            except BlockingIOError:
                await self._readable()
                continue
            self._ended = not chunk
            return chunk
        return b""

    def collect(self, limit: int) -> Collector:
        """Hand the rest of the pipe over to a collector; a read that waits ends with b""."""
        self._rouse()
        fd, self._fd = self._fd, -1
        return Collector(fd, limit)

    def close(self) -> None:
        self._rouse()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    async def _readable(self) -> None:
        self._wake = self._loop.create_future()
        self._loop.add_reader(self._fd, self._rouse)
        try:
            await self._wake
        finally:
            self._rouse()
            self._wake = None

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        if self._wake is not None and self._fd >= 0:
            self._loop.remove_reader(self._fd)


class Writer:
    """Feeds a pipe. A program that stops reading is not an error here; `feed` tells whether all of it went in."""

    def __init__(self, fd: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._rest = memoryview(b"")
        self._close_after = False
        self._done: asyncio.Future[bool] | None = None
        self._turn = asyncio.Lock()

    def start(self, data: bytes) -> None:
        """Feed `data` while the loop turns and close the pipe after it."""
        self._rest, self._close_after = memoryview(data), True
        self._push()

    async def feed(self, data: bytes) -> bool:
        """Feed `data`; False where the other end is closed. Each goes in whole, in the order of asking; a cancelled one
        drops its rest."""
        async with self._turn:
            if self._fd < 0:
                return False
            self._rest = memoryview(data)
            self._done = self._loop.create_future()
            try:
                self._push()
                return await self._done
            finally:
                self._done = None
                self._rest = memoryview(b"")
                if self._fd >= 0:
                    self._loop.remove_writer(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = -1
        self._settle(False)

    def _push(self) -> None:
        if self._fd < 0:
            return
        try:
            if self._rest:
                self._rest = self._rest[os.write(self._fd, self._rest[:_CHUNK]) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.close()
            return
        if self._rest:
            self._loop.add_writer(self._fd, self._push)
            return
        self._loop.remove_writer(self._fd)
        self._settle(True)
        if self._close_after:
            self.close()

    def _settle(self, fed: bool) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(fed)
