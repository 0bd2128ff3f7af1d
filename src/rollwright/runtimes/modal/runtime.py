"""A box at Modal: one sandbox, whose life and death are the vendor's, behind the contract of all boxes.

Covered: whatever the vendor isolates; a workspace, HOME and TMPDIR of the box's own; commands with deadlines whose
whole tree is ended; resets that end every process and empty those directories. Not covered: undoing what a program
wrote elsewhere in the image. `inspect` tells it, and such a box is thrown away. A program that is root in the box could
change the tools of the box itself; who expects that takes a fresh box per rollout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollwright.runtimes.contract import ExecResult, Process, Reach, Warm
from rollwright.runtimes.journal import Journal
from rollwright.runtimes.local import shielded
from rollwright.runtimes.local.environment import checked
from rollwright.runtimes.remote import (
    LinkBroken,
    RemoteProcess,
    RemoteScripts,
    RemoteShell,
    Tunnel,
    Watch,
    bring_programs,
    relay_line,
)
from rollwright.runtimes.slots import CpuSlots
from rollwright.runtimes.standing import check_argv
from rollwright.runtimes.state import BoxState
from rollwright.runtimes.warm.inbox import Inbox
from rollwright.wire import RuntimeFault, RuntimeLost

from .config import ModalConfig
from .life import CALL_S, ModalLife
from .processes import END_STRAYS, script_line
from .vendor import Vendor

_KILL_S = 60.0
_SLOTS = 64
"""Scripts that run at once in one box: its cores are the vendor's, and the vendor shares them out."""


class ModalRuntime(ModalLife):
    """One sandbox."""

    reach = Reach.PROXY_ONLY
    shows_cache = False

    def __init__(
        self,
        config: ModalConfig | None = None,
        *,
        journal: Journal | None = None,
        vendor: Vendor | None = None,
        slots: CpuSlots | None = None,
    ) -> None:
        super().__init__(config, journal=journal, vendor=vendor)
        self._slots = slots or CpuSlots(_SLOTS)
        self._scripts: RemoteScripts | None = None
        self._inbox: Inbox | None = None
        self._relays: dict[int, tuple[Tunnel, str]] = {}
        self._forwarding = asyncio.Lock()
        self._exposing = asyncio.Lock()

    # --- commands and files ------------------------------------------------------------------------------------------

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        cwd: str = "",
        timeout_s: float = 60.0,
        output_limit: int | None = None,
    ) -> ExecResult:
        check_argv(argv)
        shell, epoch = self._running(), self._epoch
        limit = self.config.output_limit if output_limit is None else output_limit
        number = self._next(shell)
        given = checked(env or {})
        try:
            result = await shell.run_numbered(number, argv, given, stdin, cwd, timeout_s, limit)
        except asyncio.CancelledError:
            await self._call_off(shell, number)
            raise
        except RuntimeFault as error:
            self._check(epoch)
            if isinstance(error, RuntimeLost):
                # Whether the program runs is not known, so nobody else may be let into the box.
                self._lose("does not answer")
            raise
        self._check(epoch)
        return result

    async def open_process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = ""
    ) -> Process:
        check_argv(argv)
        shell, epoch, link = self._running(), self._epoch, self._linked()
        number = self._next(shell)
        given = checked(env or {})
        try:
            limit = self.config.output_limit
            line = await shell.command_line("open", number, argv, given, cwd, limit)
            wire = await link.open(line, {f"RWE_{name}": value for name, value in given.items()})
        except BaseException as error:
            await self._call_off(shell, number)
            if isinstance(error, LinkBroken):
                raise RuntimeLost(f"box {self.name} did not say whether a program was started: {error}") from error
            raise
        return RemoteProcess(shell, number, wire, limit, lambda: self._check(epoch), lambda: None)

    async def read(self, path: str) -> bytes:
        return await self._running().read(path, self.config.read_limit)

    async def write(self, path: str, data: bytes) -> None:
        await self._running().write(path, data)

    async def run_script(
        self,
        script: Path,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        warm: Warm = False,
        takes_slot: bool = True,
    ) -> ExecResult:
        """Run a PEP 723 script, brought into the box once. `warm` loads it there once between two resets."""
        self._running()
        if self._scripts is None:
            place = f"{self.config.directory}/scripts"
            self._scripts = RemoteScripts(self._run_for_script, self._bring, self._note_scripts, place, self._slots)
        if not warm:
            return await self._scripts.run_script(script, args, env or {}, stdin, timeout_s, takes_slot)
        self._inbox = inbox = self._inbox or self._new_inbox()
        limit = self.config.output_limit
        return await self._scripts.run_warm(inbox, script, args, env or {}, stdin, timeout_s, limit, takes_slot)

    def _new_inbox(self) -> Inbox:
        """Of this epoch: nothing of it is used after the next reset."""
        shell, epoch = self._running(), self._epoch

        async def opener(argv: Sequence[str], env: Mapping[str, str]) -> Process:
            return await self.open_process(argv, env=env)

        place = self.config.directory
        return Inbox(opener, lambda: bring_programs(shell.write, place), lambda: self._check(epoch))

    async def _run_for_script(
        self, argv: Sequence[str], env: Mapping[str, str], stdin: bytes, timeout_s: float
    ) -> ExecResult:
        return await self.run(argv, env=env, stdin=stdin, timeout_s=timeout_s)

    async def _bring(self, path: str, data: bytes) -> None:
        await self._running().write(path, data)

    async def _note_scripts(self) -> None:
        await self._running().note_scripts()

    def _next(self, shell: RemoteShell) -> int:
        self._commands += 1
        return shell.number()

    async def _call_off(self, shell: RemoteShell, number: int) -> None:
        """End a command that nobody waits for, also one that is still on its way. A box where that fails is not used
        again: what runs in it is nobody's."""
        if not self._standing.running:
            return
        try:
            await shielded(shell.kill(number), within_s=_KILL_S)
        except RuntimeFault:
            self._lose("could not end a command")

    # --- addresses ---------------------------------------------------------------------------------------------------

    async def expose(self, port: int) -> str:
        self._running()
        if port not in self.config.ports:
            raise RuntimeFault(f"port {port} has no tunnel: Modal wants it in runtime.ports when the box is made")
        try:
            # One at a time: the SDK asks the vendor once, and remembers the answer.
            async with asyncio.timeout(CALL_S), self._exposing:
                tunnels = await self._linked().until_ended(self._public_tunnels())
        except (TimeoutError, LinkBroken) as error:
            raise RuntimeFault(f"modal gave no tunnel to port {port} of box {self.name}: {error}") from error
        if port not in tunnels:
            raise RuntimeFault(f"modal has no tunnel to port {port} of box {self.name}")
        return str(tunnels[port].url).rstrip("/")

    async def _public_tunnels(self) -> Any:
        return await self._sandbox.tunnels.aio(timeout=int(CALL_S))

    async def forward(self, port: int) -> str:
        shell, link = self._running(), self._linked()
        if self.config.forward_via:
            return self.config.forward_via.replace("{port}", str(port)).rstrip("/")
        async with self._forwarding:
            known = self._relays.get(port)
            if known is not None and not known[0].broken:
                return known[1]
            await self._drop_relay(port)
            try:
                wire = await link.open_plain(relay_line(), {"ROLLWRIGHT_BOX": shell.mark(shell.number())})
            except LinkBroken as error:
                raise RuntimeFault(f"no relay could be started in box {self.name}: {error}") from error
            tunnel = Tunnel(wire, port)
            try:
                url = f"http://127.0.0.1:{await tunnel.start()}"
            except BaseException:
                await shielded(tunnel.close(), within_s=_KILL_S)
                raise
            self._relays[port] = (tunnel, url)
            return url

    async def _drop_relay(self, port: int) -> None:
        """Close what is left of a relay that broke."""
        known = self._relays.pop(port, None)
        if known is not None:
            await known[0].close()

    async def _let_go(self) -> None:
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await inbox.close()
        tunnels, self._relays = self._relays, {}
        for tunnel, _ in tunnels.values():
            await tunnel.close()

    # --- between users -----------------------------------------------------------------------------------------------

    async def inspect(self) -> BoxState:
        shell, epoch = self._running(), self._epoch
        state = await shell.inspect(Watch(self.config.watched, self.config.ignored, self._own))
        self._check(epoch)
        return state

    async def reset(self) -> None:
        shell = self._running()
        self._standing.begin_reset()
        self._epoch += 1
        try:
            await self._let_go()
            await self._told(script_line(END_STRAYS, self.config.directory, self._own))
            await shell.clear()
        except BaseException:
            # Half a reset is none: this box is never used again, it can only be stopped.
            self._lose("could not be reset")
            raise
        if self._reason:
            raise RuntimeLost(f"box {self.name} {self._reason}")
        self._standing.end_reset()

    async def _told(self, line: str) -> bytes:
        try:
            said = await self._linked().execute(line, {}, CALL_S)
        except LinkBroken as error:
            raise RuntimeLost(f"box {self.name} does not answer: {error}") from error
        if not said.startswith(b"rollwright "):
            raise RuntimeFault(f"box {self.name} answered {said[:200]!r}")
        return said
