"""A container as the stand-in for the vendor makes it: a machine of its own (../remote/machine.py). Everything here
runs on the stand-in's own loop."""

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
from contextlib import suppress

from runtimes.remote import machine

_CLONE_NEWNET = 0x40000000


class Output:
    """All that one stream ever said, readable from any offset."""

    def __init__(self, fd):
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self.data = bytearray()
        self.ended = False
        self._news = asyncio.Event()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._on_readable)

    def _on_readable(self):
        try:
            chunk = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        self.data += chunk
        if not chunk:
            self.close()
        self._tell()

    def close(self):
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        self.ended = True
        self._tell()

    def _tell(self):
        self._news.set()
        self._news = asyncio.Event()

    async def chunks(self, offset):
        while True:
            news = self._news
            if offset < len(self.data):
                chunk = bytes(self.data[offset : offset + 65536])
                offset += len(chunk)
                yield chunk
            elif self.ended:
                return
            else:
                await news.wait()


class Exec:
    """One command in a container."""

    def __init__(self, container, argv, env, timeout_s):
        self._loop = asyncio.get_running_loop()
        words = [*machine.enter(container.init), *argv]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self._popen = subprocess.Popen(words, env=env, bufsize=0, **pipes)
        self.stdout = Output(os.dup(self._popen.stdout.fileno()))
        self.stderr = Output(os.dup(self._popen.stderr.fileno()))
        self._popen.stdout.close()
        self._popen.stderr.close()
        os.set_blocking(self._popen.stdin.fileno(), False)
        self.written = 0
        self.exited = self._loop.create_future()
        self._pidfd = os.pidfd_open(self._popen.pid)
        self._loop.add_reader(self._pidfd, self._on_exit)
        self._timer = self._loop.call_later(timeout_s, self.kill) if timeout_s else None

    def _on_exit(self):
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._popen.poll()
        if self._timer is not None:
            self._timer.cancel()
        if not self.exited.done():
            self.exited.set_result(self._popen.returncode)

    async def feed(self, offset, data, eof):
        """Write from `offset` on; what was written before, by an earlier try, is not written again."""
        rest = memoryview(data)[max(self.written - offset, 0) :]
        while rest:
            try:
                count = os.write(self._popen.stdin.fileno(), rest[:65536])
            except BlockingIOError:
                await self._writable()
                continue
            self.written += count
            rest = rest[count:]
        if eof and not self._popen.stdin.closed:
            self._popen.stdin.close()

    async def _writable(self):
        ready = self._loop.create_future()
        fd = self._popen.stdin.fileno()
        self._loop.add_writer(fd, lambda: ready.done() or ready.set_result(None))
        try:
            await asyncio.wait({ready, self.exited}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._loop.remove_writer(fd)

    def kill(self):
        for pid in machine.children_of(self._popen.pid):
            os.kill(pid, signal.SIGKILL)

    async def close(self):
        if self._popen.poll() is None:
            self._popen.kill()
        await asyncio.wait({self.exited}, timeout=10)
        self.stdout.close()
        self.stderr.close()
        if not self._popen.stdin.closed:
            self._popen.stdin.close()


class Container:
    """Made by `start`, ended by `close` with everything in it."""

    def __init__(self, name):
        self.environment = {**machine.ENVIRONMENT, "HOSTNAME": name}
        self.init = 0
        self.execs = {}
        self._popen = None
        self._gates = []

    async def start(self, entrypoint):
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        words = machine.make(*entrypoint)
        self._popen = subprocess.Popen(words, env=self.environment, bufsize=0, **pipes)  # noqa: ASYNC220 - returns at once.
        said = Output(os.dup(self._popen.stdout.fileno()))
        self._popen.stdout.close()
        async for chunk in said.chunks(0):
            assert chunk == b"up\n", chunk
            break
        said.close()
        self.init = machine.first_process(self._popen.pid)

    async def tunnel(self, port):
        """A port of this machine behind which the container's `port` is."""

        async def carry(reader, writer):
            connect = lambda: socket.create_connection(("127.0.0.1", port), timeout=10)  # noqa: E731
            try:
                inside = await asyncio.to_thread(in_network_of, self.init, connect)
            except OSError:
                writer.close()
                return
            inner_reader, inner_writer = await asyncio.open_connection(sock=inside)
            await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))

        gate = await asyncio.start_server(carry, "127.0.0.1", 0)
        self._gates.append(gate)
        return gate.sockets[0].getsockname()[1]

    async def close(self):
        for gate in self._gates:
            gate.close()
        if self._popen is not None:
            # Its holder ends after the first process, and that one is the last to go.
            if self.init:
                with suppress(ProcessLookupError):
                    os.kill(self.init, signal.SIGKILL)
            else:
                self._popen.kill()
            await asyncio.to_thread(self._popen.wait)
        for command in self.execs.values():
            await command.close()


def in_network_of(pid, make):
    """A socket that belongs to the network of another process. The thread goes there and comes back."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as home, open(f"/proc/{pid}/ns/net") as there:
        assert libc.setns(there.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        try:
            made = make()
            made.setblocking(False)
            return made
        finally:
            assert libc.setns(home.fileno(), _CLONE_NEWNET) == 0


async def _pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()
