"""One remote box as one user has it. A box that was replaced or cleaned is the next generation, in the second case with
the same id. What a user runs in it is broken off with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from rollwright.runtimes.contract import ExecResult
from rollwright.runtimes.local import shielded
from rollwright.runtimes.remote import (
    Lifetime,
    LinkBroken,
    RemoteProcess,
    RemoteScripts,
    RemoteShell,
    Tunnel,
    Watch,
    beyond,
    bring_programs,
    relay_line,
)
from rollwright.runtimes.slots import CpuSlots
from rollwright.runtimes.state import BoxState
from rollwright.runtimes.warm.inbox import Inbox
from rollwright.wire import RuntimeFault, RuntimeLost

from .config import PrimeConfig
from .link import PrimeLink, PrimeWire
from .sdk import told

if TYPE_CHECKING:
    from prime_sandboxes import AsyncSandboxClient

T = TypeVar("T")


def network_name(sandbox_id: str) -> str:
    """Of the network of a box: a sweep finds one by it that was made and not written down any more."""
    return f"rollwright-{sandbox_id}"


_KILL_S = 60.0
_EXPOSE_S = 180.0
_POLL_S = 0.5


class Generation:
    """`id` is the vendor's. Everything is refused once it is broken off."""

    def __init__(
        self,
        client: AsyncSandboxClient,
        config: PrimeConfig,
        sandbox_id: str,
        lifetime: Lifetime,
        slots: CpuSlots,
        before: Generation | None = None,
    ) -> None:
        self.id = sandbox_id
        self.lifetime = lifetime
        self._network_id = ""
        self._born: BoxState | None = None
        self._client = client
        self._config = config
        self._link = PrimeLink(client, sandbox_id, lifetime)
        self.shell: RemoteShell = before.shell if before else RemoteShell(self._link, config.directory, config.workdir)
        place = f"{config.directory}/scripts"
        note = None if config.reset_is_a_start else self.shell.note_scripts
        self.scripts = RemoteScripts(self._run_script, self.shell.write, note, place, slots)
        self.inbox = Inbox(self._open_carrier, self._bring_programs, self.check)
        self._ports: set[int] = set()
        self._exposing = asyncio.Lock()
        self._tunnels: dict[int, tuple[Tunnel, str]] = {}
        self._forwarding = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._wires: dict[int, PrimeWire] = {}
        self.broken = False
        self.survived = False
        """Something could not be ended in it."""

    def __repr__(self) -> str:
        return f"<box {self.id}, {len(self._tasks)} requests, {len(self._wires)} processes>"

    async def within(self, work: Coroutine[Any, Any, T]) -> T:
        """`work`, unless the box is broken off first: then RuntimeLost. Cancelled with its caller."""
        task = asyncio.create_task(work, name=f"work in box {self.id}")
        self._tasks.add(task)
        if self.broken:
            task.cancel()
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            self._tasks.discard(task)
            if task.done() and not task.cancelled():
                task.exception()  # Looked at, also where the end of the box is what is told.
        self.check()
        return task.result()

    def check(self) -> None:
        if self.broken:
            raise RuntimeLost(f"box {self.id} was stopped or reset while it was used")

    def break_off(self) -> None:
        """End every request on our side; what runs in the box is ended by whoever called this."""
        self.broken = True
        for task in self._tasks:
            task.cancel()

    async def settle(self) -> None:
        """Bring what a fresh box needs. What it was born with is looked at where the next box will be another one."""
        await self.shell.install()
        if self._config.reset_is_a_start:
            self._born = await self.shell.inspect(Watch())

    async def inspect(self) -> BoxState:
        if self._born is not None:
            return beyond(self._born, await self.shell.inspect(Watch()))
        return await self.shell.inspect(Watch(self._config.watched, self._config.ignored))

    async def close_streams(self) -> None:
        """Close the streams of processes that have ended with the box or were ended in it."""
        for wire in list(self._wires.values()):
            with suppress(LinkBroken, RuntimeFault):
                await wire.abandon()
        for tunnel, _ in self._tunnels.values():
            await tunnel.close()
        await self.inbox.close()
        self._wires.clear()
        self._tunnels.clear()

    async def run(
        self, argv: Sequence[str], env: Mapping[str, str], stdin: bytes, cwd: str, timeout_s: float, limit: int
    ) -> ExecResult:
        number = self.shell.number()
        try:
            return await self.within(self.shell.run_numbered(number, argv, env, stdin, cwd, timeout_s, limit))
        except asyncio.CancelledError:
            await self._end(number)
            raise

    async def open_process(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, on_close: Callable[[], None]
    ) -> RemoteProcess:
        number, limit = self.shell.number(), self._config.output_limit
        try:
            wire = await self.within(self._open(number, argv, env, cwd, limit))
        except asyncio.CancelledError:
            await self._end(number)
            raise
        self._wires[number] = wire

        def closed() -> None:
            self._wires.pop(number, None)
            on_close()

        return RemoteProcess(self.shell, number, wire, limit, self.check, closed)

    async def expose(self, port: int) -> str:
        """Publish `port` through a network of this box alone. Anyone who learns the address reaches it."""
        async with self._exposing:
            if port not in self._ports:
                try:
                    with told(f"publishing port {port} of box {self.id}"):
                        async with asyncio.timeout(_EXPOSE_S):
                            await self._publish({*self._ports, port})
                except (TimeoutError, LinkBroken) as error:
                    raise RuntimeFault(f"port {port} of box {self.id} could not be published: {error}") from error
                self._ports.add(port)
            return await self._address(port)

    async def forward(self, port: int) -> str:
        """An address inside of the box that leads to `port` of this host's loopback."""
        async with self._forwarding:
            known = self._tunnels.get(port)
            if known is not None and not known[0].broken:
                return known[1]
            await self._drop_tunnel(port)
            number = self.shell.number()
            try:
                wire = await self._link.open(relay_line(), {"ROLLWRIGHT_BOX": self.shell.mark(number)})
            except LinkBroken as error:
                raise RuntimeFault(f"no relay could be started in box {self.id}: {error}") from error
            self._wires[number] = wire
            tunnel = Tunnel(wire, port)
            try:
                url = f"http://127.0.0.1:{await tunnel.start()}"
            except BaseException:
                await shielded(tunnel.close(), within_s=_KILL_S)
                raise
            self._tunnels[port] = (tunnel, url)
            return url

    async def _drop_tunnel(self, port: int) -> None:
        """Close what is left of a tunnel that broke."""
        known = self._tunnels.pop(port, None)
        if known is not None:
            with suppress(LinkBroken, RuntimeFault):
                await known[0].close()

    async def remove_network(self) -> None:
        """Whoever learned an address of this user must not reach the next one."""
        if not self._network_id:
            return
        try:
            with suppress(RuntimeLost), told(f"the network of box {self.id}"):
                await self._client.delete_lan_network(self._network_id)
        except LinkBroken as error:
            raise RuntimeFault(f"the network of box {self.id} may still be there: {error}") from error
        self._network_id = ""

    async def _open(self, number: int, argv: Sequence[str], env: Mapping[str, str], cwd: str, limit: int) -> PrimeWire:
        line = await self.shell.command_line("open", number, argv, env, cwd, limit)
        try:
            return await self._link.open(line, {f"RWE_{name}": value for name, value in env.items()})
        except LinkBroken as error:
            await self._end(number)
            kind = RuntimeLost if self.survived else RuntimeFault  # A box that answers nothing is gone.
            raise kind(f"a process could not be opened in box {self.id}: {error}") from error

    async def _run_script(
        self, argv: Sequence[str], env: Mapping[str, str], stdin: bytes, timeout_s: float
    ) -> ExecResult:
        return await self.run(argv, env, stdin, "", timeout_s, self._config.output_limit)

    async def _open_carrier(self, argv: Sequence[str], env: Mapping[str, str]) -> RemoteProcess:
        return await self.open_process(argv, env, "", lambda: None)

    async def _bring_programs(self) -> str:
        return await self.within(bring_programs(self.shell.write, self._config.directory))

    async def _end(self, number: int) -> None:
        """The caller goes away: its command ends first, also if it has not reached the box yet."""
        if self.broken:
            return
        try:
            await shielded(self.shell.kill(number), within_s=_KILL_S)
        except RuntimeFault:
            self.survived = True  # The cancellation goes on; the box is not used again.

    async def _publish(self, ports: set[int]) -> None:
        from prime_sandboxes import LanRule

        rules = [LanRule(**{"from": "internet"}, to="*", ports=sorted(ports))]
        if self._network_id:
            await self._client.set_lan_rules(self._network_id, rules)
        else:
            team = self._config.team_id or None
            network = await self._client.create_lan_network(network_name(self.id), team, rules)
            self._network_id = network.id
            await self._client.add_lan_member(network.id, self.id)
        while not await self._in_force():  # noqa: ASYNC110 - the vendor sends no event.
            await asyncio.sleep(_POLL_S)

    async def _in_force(self) -> bool:
        network = await self._client.get_lan_network(self._network_id)
        members = network.members or []
        return network.synced and any(member.sandbox_id == self.id and member.synced for member in members)

    async def _address(self, port: int) -> str:
        with told(f"the gateway of box {self.id}"):
            auth = await self._client.client.request("POST", f"/sandbox/{self.id}/auth", idempotent_post=True)
        gateway = urlsplit(auth["gateway_url"])
        return f"{gateway.scheme}://{port}-{self.id}.{self._config.expose_domain or gateway.netloc}"
