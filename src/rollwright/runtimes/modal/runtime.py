"""A box at Modal: one sandbox, whose life and death are the vendor's, behind the contract of all boxes.

Covered: whatever the vendor isolates; a workspace, HOME and TMPDIR of the box's own; commands with deadlines whose
whole tree is ended; resets that end every process and empty those directories. Not covered: undoing what a program
wrote elsewhere in the image. `inspect` tells it, and such a box is thrown away. A program that is root in the box could
change the tools of the box itself; who expects that takes a fresh box per rollout.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Self

import msgspec

from rollwright.runtimes.contract import ExecResult, Process, Reach, Warm
from rollwright.runtimes.journal import Journal
from rollwright.runtimes.local import shielded
from rollwright.runtimes.local.environment import checked
from rollwright.runtimes.local.threads import in_thread
from rollwright.runtimes.remote import (
    Lifetime,
    LinkBroken,
    RemoteProcess,
    RemoteScripts,
    RemoteShell,
    create_patiently,
)
from rollwright.runtimes.slots import CpuSlots
from rollwright.runtimes.state import BoxState
from rollwright.wire import RuntimeFault, RuntimeLost

from .config import ModalConfig
from .link import ModalLink, ended_task
from .processes import END_STRAYS, OWN, TELL
from .vendor import Vendor, check_installed, meaning, refused, shared_vendor

_CLOSE_S = 120.0
_MAKING_ENDS_S = 30.0
_KILL_S = 60.0
_CALL_S = 60.0
_WATCH_PAUSE_S = 5.0
_SLOTS = 64


class _State(Enum):
    NEW = "not started"
    STARTING = "starting"
    RUNNING = "running"
    RESETTING = "being reset"
    LOST = "lost"
    STOPPED = "stopped"


class ModalRuntime:
    """One sandbox. Also an async context manager that starts and stops it."""

    reach = Reach.PROXY_ONLY

    def __init__(
        self,
        config: ModalConfig | None = None,
        *,
        journal: Journal | None = None,
        vendor: Vendor | None = None,
        slots: CpuSlots | None = None,
    ) -> None:
        check_installed()
        self.config = config or ModalConfig()
        self._journal = journal or Journal()
        self._vendor = vendor or shared_vendor()
        self._slots = slots
        self._id = secrets.token_hex(6)
        self._state = _State.NEW
        self._reason = ""
        self._epoch = 0
        self._commands = 0
        self._own = ""
        self._sandbox: Any = None
        self._link: ModalLink | None = None
        self._shell: RemoteShell | None = None
        self._scripts: RemoteScripts | None = None
        self._lifetime = Lifetime(0, 0)
        self._making: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<{self.name} {self._reason or self._state.value}, {self._commands} commands>"

    @property
    def name(self) -> str:
        return f"modal-{self._id}"

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        if self._state is not _State.NEW:
            raise RuntimeFault(f"box {self.name} is {self._state.value}; a box starts once")
        self._state = _State.STARTING
        self._making = asyncio.create_task(self._make(), name=f"make {self.name}")
        try:
            # The request that makes a sandbox is not cut short: one that is made after we stopped listening would live.
            await asyncio.shield(self._making)
        except BaseException:
            await self.stop()
            raise
        if self._state is not _State.STARTING:
            raise RuntimeLost(f"box {self.name} was stopped while it started")
        self._state = _State.RUNNING

    async def _make(self) -> None:
        await in_thread(self._write_down, "")
        lifetime = Lifetime(self.config.lifetime_s, self.config.idle_timeout_s)
        self._sandbox = await self._created()
        self._lifetime = lifetime
        await in_thread(self._write_down, self._sandbox.object_id)
        self._link = link = ModalLink(self._sandbox, self.name)
        self._watching = asyncio.create_task(self._watch(link), name=f"watch {self.name}")
        self._shell = shell = RemoteShell(link, self.config.directory)
        await shell.install()
        self._own = await self._tell_own(link)
        self._scripts = RemoteScripts(
            self._run_plain, shell.write, f"{self.config.directory}/scripts", self._slots or CpuSlots(_SLOTS)
        )

    async def _created(self) -> Any:
        config = self.config
        try:
            return await create_patiently(
                self._create_once,
                meaning,
                pace=self._vendor.pace(config.creates_per_s),
                within_s=config.start_timeout_s,
            )
        except RuntimeFault:
            raise
        except Exception as error:  # The SDK's errors have no common root; this is its border.
            raise refused(error, f"box {self.name}") from error

    async def _create_once(self) -> Any:
        if self._state is not _State.STARTING:
            raise RuntimeLost(f"box {self.name} was stopped while it started")
        return await self._vendor.create(self.config, self.name)

    async def _tell_own(self, link: ModalLink) -> str:
        """The processes that belong to the box itself, so that all others can be told from them."""
        try:
            said = await link.execute(_script(OWN, self.config.directory), {}, _CALL_S)
        except LinkBroken as error:
            raise RuntimeLost(f"box {self.name} does not answer: {error}") from error
        if not said.startswith(b"rollwright own"):
            raise RuntimeFault(f"the first process of box {self.name} did not come up")
        return said.decode().removeprefix("rollwright own").strip()

    def _write_down(self, sandbox_id: str) -> None:
        self._journal.open("modal", self.name, {"app": self.config.app, "name": self.name, "sandbox": sandbox_id})

    async def _watch(self, link: ModalLink) -> None:
        """Know of the sandbox's end when it comes: the SDK's own waits go on for a box whose worker has gone away."""
        while not link.ended.done():
            try:
                await self._sandbox.wait.aio(raise_on_termination=False)
                self._lose("was ended by the vendor or by its first process")
            except Exception as error:  # The SDK's border. A request that failed says nothing about the box.
                if type(error).__name__ == "SandboxTimeoutError":
                    self._lose("is past its lifetime or idle time")
                elif type(error).__name__ == "NotFoundError":
                    self._lose("is not known to the vendor any more")
                else:
                    await asyncio.wait({link.ended}, timeout=_WATCH_PAUSE_S)

    async def stop(self) -> None:
        if self._stopping is None:
            began = self._state is not _State.NEW
            self._state = _State.STOPPED
            if self._link is not None:
                self._link.end("was stopped")
            self._stopping = asyncio.create_task(self._close(began), name=f"stop {self.name}")
        await shielded(self._stopping, within_s=_CLOSE_S)

    async def _close(self, began: bool) -> None:
        if not began:
            return
        if self._making is not None:
            await asyncio.wait({self._making}, timeout=_MAKING_ENDS_S)
            await ended_task(self._making)
        if self._link is not None:
            self._link.end("was stopped")
        if self._watching is not None:
            await ended_task(self._watching)
        sandbox_id = self._sandbox.object_id if self._sandbox is not None else ""
        # Where this fails, the journal keeps the box for a sweep.
        await self._vendor.free(self.config.app, self.name, sandbox_id)
        if self._sandbox is not None:
            await self._sandbox.detach.aio()
        await in_thread(self._journal.close, self.name)

    async def alive(self) -> bool:
        if self._state is not _State.RUNNING or self._link is None:
            return False
        try:
            async with asyncio.timeout(_CALL_S):
                return bool(await self._link.until_ended(self._poll()) is None)
        except (RuntimeFault, LinkBroken, TimeoutError):
            return False

    async def _poll(self) -> Any:
        return await self._sandbox.poll.aio()

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
        _check_argv(argv)
        shell, epoch = self._running(), self._epoch
        limit = self.config.output_limit if output_limit is None else output_limit
        number = self._next(shell)
        given = checked(env or {})
        try:
            result = await shell.run_numbered(number, argv, given, stdin, cwd, timeout_s, limit)
        except asyncio.CancelledError:
            await self._call_off(shell, number)
            raise
        except RuntimeFault:
            self._check(epoch)
            raise
        self._check(epoch)
        return result

    async def open_process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = ""
    ) -> Process:
        _check_argv(argv)
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
    ) -> ExecResult:
        """Run a PEP 723 script, brought into the box once. Every call is answered cold, by one process."""
        self._running()
        assert self._scripts is not None
        return await self._scripts.run_script(script, args, env or {}, stdin, timeout_s)

    async def _run_plain(
        self, argv: Sequence[str], env: Mapping[str, str], stdin: bytes, timeout_s: float
    ) -> ExecResult:
        return await self.run(argv, env=env, stdin=stdin, timeout_s=timeout_s)

    def _next(self, shell: RemoteShell) -> int:
        self._commands += 1
        self._lifetime.touch()
        return shell.number()

    async def _call_off(self, shell: RemoteShell, number: int) -> None:
        """End a command that nobody waits for, also one that is still on its way. A box where that fails is not used
        again: what runs in it is nobody's."""
        if self._state is not _State.RUNNING:
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
            async with asyncio.timeout(_CALL_S):
                tunnels = await self._linked().until_ended(self._tunnels())
        except (TimeoutError, LinkBroken) as error:
            raise RuntimeFault(f"modal gave no tunnel to port {port} of box {self.name}: {error}") from error
        if port not in tunnels:
            raise RuntimeFault(f"modal has no tunnel to port {port} of box {self.name}")
        return str(tunnels[port].url).rstrip("/")

    async def _tunnels(self) -> Any:
        return await self._sandbox.tunnels.aio(timeout=int(_CALL_S))

    async def forward(self, port: int) -> str:
        self._running()
        if not self.config.forward_via:
            raise RuntimeFault(
                f"a box at Modal cannot reach port {port} of this host; make a public tunnel to it and name its "
                "address in runtime.forward_via"
            )
        return self.config.forward_via.replace("{port}", str(port)).rstrip("/")

    # --- between users -----------------------------------------------------------------------------------------------

    async def inspect(self) -> BoxState:
        shell, epoch = self._running(), self._epoch
        state = await shell.inspect(self.config.watched)
        said = await self._told(_script(TELL, self.config.directory, self._own))
        self._check(epoch)
        processes, files = [], dict(state.files)
        for line in said.decode("utf-8", "replace").splitlines()[1:]:
            kind, _, rest = line.partition(" ")
            if kind == "process":
                processes.append(rest)
            elif kind == "tool":
                files[f"{self.config.directory}/control/box.sh"] = rest
        return msgspec.structs.replace(state, processes=tuple(processes), files=files)

    async def reset(self) -> None:
        shell = self._running()
        self._state = _State.RESETTING
        self._epoch += 1
        try:
            await self._told(_script(END_STRAYS, self.config.directory, self._own))
            await shell.clear()
        except BaseException:
            # Half a reset is none: this box is never used again, it can only be stopped.
            self._lose("could not be reset")
            raise
        if self._state is _State.RESETTING:
            self._state = _State.RUNNING

    async def _told(self, line: str) -> bytes:
        try:
            said = await self._linked().execute(line, {}, _CALL_S)
        except LinkBroken as error:
            raise RuntimeLost(f"box {self.name} does not answer: {error}") from error
        if not said.startswith(b"rollwright "):
            raise RuntimeFault(f"box {self.name} answered {said[:200]!r}")
        return said

    # --- state -------------------------------------------------------------------------------------------------------

    def _running(self) -> RemoteShell:
        if self._state is not _State.RUNNING or self._shell is None:
            raise RuntimeLost(f"box {self.name} {self._reason or f'is {self._state.value}'}")
        return self._shell

    def _linked(self) -> ModalLink:
        assert self._link is not None
        return self._link

    def _check(self, epoch: int) -> None:
        """RuntimeLost for whoever was in the box before it was reset, stopped or lost."""
        if self._state in (_State.LOST, _State.STOPPED):
            self._running()
        if epoch != self._epoch:
            raise RuntimeLost(f"box {self.name} was reset while a program ran in it")

    def _lose(self, reason: str) -> None:
        if self._state is not _State.STOPPED:
            self._state, self._reason = _State.LOST, self._reason or reason
        if self._link is not None:
            self._link.end(reason)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()


def _script(program: str, *words: str) -> str:
    return f"exec {shlex.join(['/bin/sh', '-c', program, *words])}"


def _check_argv(argv: Sequence[str]) -> None:
    if isinstance(argv, str) or not argv or not argv[0] or argv[0].startswith("-"):
        raise RuntimeFault(f"a command is a list of words that begins with a program, not {argv!r}")
    if any("\0" in word for word in argv):
        raise RuntimeFault("a word of the command holds a NUL byte")
