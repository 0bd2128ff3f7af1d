"""Ways between a box without a network and this process.

Into the host: a program in the box connects to an address on its own loopback, and a server of ours out here answers.
Where this process may enter the container's network namespace (root on the engine's machine), it listens in there
itself and nothing runs inside. Elsewhere it listens on a unix socket in a directory that the box sees, and a small
forwarder inside the box carries connections to it; the image needs python3 for that.
Into the box: a server on our loopback connects from inside the container's network namespace; without the right to
enter it, the container's own address is told, if its network gives it one.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from rollwright.runtimes.contract import Process
from rollwright.runtimes.local.netns import listener_in, socket_in
from rollwright.runtimes.local.threads import in_thread
from rollwright.wire import RuntimeFault

from .relay import Relay, Serve, Streams, to_dialled
from .spec import DOORS

OpenProcess = Callable[[list[str]], Awaitable[Process]]
_READY_S = 20.0

# Words: the socket to carry to, and the port to listen on, 0 for any. It prints the port it listens on.
_FORWARDER = """
import socket, sys, threading
def carry(a, b):
    try:
        while chunk := a.recv(65536):
            b.sendall(chunk)
        b.shutdown(socket.SHUT_WR)
    except OSError:
        pass
def serve(near):
    far = socket.socket(socket.AF_UNIX)
    with near, far:
        try:
            far.connect(sys.argv[1])
        except OSError:
            return
        back = threading.Thread(target=carry, args=(far, near), daemon=True)
        back.start()
        carry(near, far)
        back.join()
server = socket.create_server(("127.0.0.1", int(sys.argv[2])), backlog=128)
print(server.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


@dataclass(slots=True)
class Doors:
    """The open doors of one container. `pid` is its first process as seen from here, 0 where it is not seen."""

    pid: int
    directory: str
    """Of the host, seen in the box at DOORS; empty where there is none."""
    open_process: OpenProcess
    address: str = ""
    """The container's own, as the engine tells it."""
    _urls: dict[tuple[str, int], str] = field(default_factory=dict)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _relays: list[Relay] = field(default_factory=list)
    _forwarders: list[Process] = field(default_factory=list)

    async def to_host(self, port: int) -> str:
        """The URL by which programs in the box reach `port` of this host's loopback: one door, however often asked."""
        async with self._opening:
            if ("in", port) not in self._urls:
                self._urls["in", port] = await self.inward(to_dialled(dial_host(port)))
            return self._urls["in", port]

    async def inward(self, serve: Serve, port: int = 0) -> str:
        """The URL by which programs in the box reach `serve`, on `port` or on one that is free."""
        relay = Relay(serve)
        self._relays.append(relay)
        if self.pid:
            listener = await in_thread(listener_in, self.pid, port)
            relay.attach(await asyncio.start_server(relay.accept, sock=listener))
            return f"http://127.0.0.1:{listener.getsockname()[1]}"
        if not self.directory:
            raise RuntimeFault(
                "this box has no way to the host: be root on the engine's machine, or use its unix socket"
            )
        name = f"{port or secrets.token_hex(6)}.sock"
        path = os.path.join(self.directory, name)
        relay.attach(await asyncio.start_unix_server(relay.accept, path))
        # Programs in the box may run as anybody; who may come near is decided by the directory, which only we share.
        await in_thread(os.chmod, path, 0o666)
        return f"http://127.0.0.1:{await self._forwarded(f'{DOORS}/{name}', port)}"

    async def outward(self, port: int) -> str:
        """The URL by which this process reaches `port` in the box: one door, however often asked."""
        async with self._opening:
            if ("out", port) not in self._urls:
                self._urls["out", port] = await self._outward(port)
            return self._urls["out", port]

    async def _outward(self, port: int) -> str:
        if not self.pid:
            if self.address:
                return f"http://{self.address}:{port}"
            raise RuntimeFault("this box has no address: be root on the engine's machine, or give it network 'full'")
        relay = Relay(to_dialled(lambda: self._dial(port)))
        self._relays.append(relay)
        server = await asyncio.start_server(relay.accept, "127.0.0.1", 0)
        relay.attach(server)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Close every door. What went through them is cut."""
        relays, self._relays = self._relays, []
        forwarders, self._forwarders = self._forwarders, []
        for relay in relays:
            await relay.close()
        for forwarder in forwarders:
            await forwarder.__aexit__(None, None, None)

    async def _dial(self, port: int) -> Streams:
        dialled = await in_thread(socket_in, self.pid)
        try:
            await asyncio.get_running_loop().sock_connect(dialled, ("127.0.0.1", port))
            return await asyncio.open_connection(sock=dialled)
        except BaseException:
            dialled.close()
            raise

    async def _forwarded(self, path: str, port: int) -> int:
        """The port of a forwarder in the box that carries connections to `path`."""
        process = await self.open_process(["python3", "-c", _FORWARDER, path, str(port)])
        self._forwarders.append(process)
        line = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(_READY_S):
                while not line.endswith(b"\n") and (part := await process.read(64)):
                    line += part
        if not line.strip().isdigit():
            raise RuntimeFault("no forwarder runs in this box: without root out here, its image needs python3")
        return int(line)


def may_enter() -> bool:
    """Whether this process may enter the network of other processes, as root may."""
    return sys.platform == "linux" and os.geteuid() == 0


def dial_host(port: int) -> Callable[[], Awaitable[Streams]]:
    """Connects to `port` of this host's loopback."""
    return lambda: asyncio.open_connection("127.0.0.1", port)
