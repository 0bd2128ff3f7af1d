"""A box of Linux namespaces on this machine: its own users, processes, mounts, IPC, host name and, by default, network.

Covered: a read-only root that shows the system's programs and nobody's home; workspace, HOME, /tmp and /dev/shm in
memory, thrown away at a reset; bounds of the whole box where a control group can be had and of each process otherwise;
no privileges and a filter of system calls; the end of every process with the box, whatever it did to hide.
Not covered: the kernel itself, which all boxes share with the host, and with `network: full` the host's network.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Self

from rollwright.runtimes.contract import ExecResult, Process, Reach, Warm
from rollwright.runtimes.journal import Journal
from rollwright.runtimes.local import Command, Launch, LocalProcess, Quarry, host_environment, run_to_end, shielded
from rollwright.runtimes.local.census import MARK
from rollwright.runtimes.local.child import spawn_turn
from rollwright.runtimes.local.environment import checked
from rollwright.runtimes.local.threads import in_thread
from rollwright.runtimes.scripts import run_script
from rollwright.runtimes.slots import UNCOUNTED, CpuSlots
from rollwright.runtimes.standing import Standing, check_argv
from rollwright.runtimes.state import BoxState, differences, told
from rollwright.runtimes.warm.seat import JOINED, Seat, Starter
from rollwright.wire import RuntimeFault, RuntimeLost

from .box import KIND, Box
from .config import SandboxConfig
from .files import read_file, write_file
from .layout import HOME, TMPDIR, WORKSPACE, is_shown
from .program import Program
from .relays import Relays, loopback_listener
from .seccomp import filter_code

_CLOSE_S = 60.0
_CAPABILITIES = tuple(range(41))


class SandboxRuntime:
    """One box. Also an async context manager that starts and stops it."""

    shows_cache = True

    def __init__(
        self, config: SandboxConfig | None = None, *, slots: CpuSlots | None = None, journal: Journal | None = None
    ) -> None:
        self.config = config or SandboxConfig()
        self.reach = Reach.PROXY_ONLY if self.config.network == "none" else Reach.HOST
        self._slots = slots
        self._name = f"{KIND}-{secrets.token_hex(6)}"
        self._token = secrets.token_hex(16)
        self._box = Box(self._name, self.config, journal or Journal())
        self._standing = Standing(self._name)
        self._active: set[Command] = set()
        self._commands = 0
        self._base_env: dict[str, str] = {}
        self._fresh = BoxState()
        self._seen: BoxState | None = None
        """The last look, where nobody touched the box since."""
        self._relays = Relays()
        self._urls: dict[tuple[str, int], str] = {}
        self._opening = asyncio.Lock()
        self._making: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<{self.name} {self._standing}, {len(self._active)} active, {self._commands} commands>"

    @property
    def name(self) -> str:
        return self._name

    async def start(self) -> None:
        self._standing.begin_start()
        self._base_env = host_environment(self.config.allow_env) | {"HOME": HOME, "TMPDIR": TMPDIR}
        self._making = asyncio.create_task(self._make(), name=f"make {self.name}")
        try:
            await shielded(self._making, within_s=_CLOSE_S)
        except BaseException:
            await self.stop()
            raise
        self._standing.end_start()

    async def stop(self) -> None:
        if self._stopping is None:
            self._standing.stop()
            self._stopping = asyncio.create_task(self._close(), name=f"stop {self.name}")
        await shielded(self._stopping, within_s=_CLOSE_S)

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
        command = await self._launch(argv, env, cwd, feeds=bool(stdin), output_limit=output_limit)
        return await self._to_end(command, stdin, timeout_s)

    async def open_process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = ""
    ) -> Process:
        command = await self._launch(argv, env, cwd, feeds=True, output_limit=None)
        return LocalProcess(command, lambda: self._check_unbroken(command), self._forget)

    async def read(self, path: str) -> bytes:
        box = self._running()
        return await box.chores.do(read_file, box.root, path, self.config.read_limit)

    async def write(self, path: str, data: bytes) -> None:
        box = self._touched()
        try:
            await box.chores.do(write_file, box.root, path, data)
        finally:
            self._seen = None

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
        """Run a PEP 723 script with the dependencies it declares. A cold one must lie where the box can see it."""
        self._running()
        await in_thread(_check_shown, self.config, script)
        slots = self._slots if takes_slot else UNCOUNTED
        return await run_script(self, script, args, env=env, stdin=stdin, timeout_s=timeout_s, slots=slots, warm=warm)

    def seat(self, env: Mapping[str, str] | None) -> Seat:
        """What a script that was loaded outside takes on when it comes in (see warm/)."""
        box = self._running()
        given = self._admit(env, WORKSPACE)
        limits = {name.removeprefix("RLIMIT_"): value for name, value in box.limits().items()}
        return Seat(
            given,
            WORKSPACE,
            given[MARK],
            limits,
            ruleset=box.rules,
            drop_capabilities=_CAPABILITIES,
            join_pid=box.pid,
            namespaces=tuple(space for space in JOINED if space != "net" or box.own_network),
            cgroups=box.groups.doors,
            seccomp=filter_code().hex(),
        )

    async def run_seated(
        self, start: Starter, *, env: Mapping[str, str] | None, stdin: bytes, timeout_s: float
    ) -> ExecResult:
        """As `run`, for a program that is born elsewhere and takes its seat here."""
        seat = self.seat(env)
        command = start(seat, Quarry(seat.mark, "", time.monotonic()), bool(stdin), self.config.output_limit)
        self._active.add(command)
        return await self._to_end(command, stdin, timeout_s)

    async def expose(self, port: int) -> str:
        box = self._touched()
        if self.config.network == "full":
            return f"http://127.0.0.1:{port}"

        async def connect() -> socket.socket:
            _, fds = await box.live().ask("socket")
            return await _connected(socket.socket(fileno=fds[0]), port)

        async with self._opening:
            if ("expose", port) not in self._urls:
                outer = await self._relays.open(loopback_listener(), connect)
                self._urls["expose", port] = f"http://127.0.0.1:{outer}"
            return self._urls["expose", port]

    async def forward(self, port: int) -> str:
        box = self._touched()
        if self.config.network == "full":
            return f"http://127.0.0.1:{port}"

        async def connect() -> socket.socket:
            return await _connected(socket.socket(), port)

        async with self._opening:
            if ("forward", port) not in self._urls:
                _, fds = await box.live().ask("listen", port=port)
                self._seen = None
                inner = await self._relays.open(socket.socket(fileno=fds[0]), connect)
                self._urls["forward", port] = f"http://127.0.0.1:{inner}"
            return self._urls["forward", port]

    async def alive(self) -> bool:
        return self._standing.running and self._box.channel is not None and not self._box.channel.closed

    async def inspect(self) -> BoxState:
        """A start and a reset end with a look. It is told again as long as nothing was run, written or opened since:
        nothing is in the box that could have changed it."""
        box = self._running()
        return self._seen or await box.look(self._base_env)

    async def reset(self) -> None:
        box = self._touched()
        self._standing.begin_reset()
        try:
            for command in self._active:
                command.ended_by_box = True
            await self._end_relays()
            await box.clear()
            seen = await box.look(self._base_env)
            found = differences(self._fresh, seen)
            if found:
                raise RuntimeFault(f"box {self.name} is not as it was after a reset: {told(found)}")
        except BaseException:
            # Half a reset is none: this box is never used again, it can only be stopped.
            self._standing.lose()
            raise
        self._standing.end_reset()
        self._seen = seen

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def _make(self) -> None:
        await self._box.make()
        self._fresh = self._seen = await self._box.look(self._base_env)

    async def _launch(
        self, argv: Sequence[str], env: Mapping[str, str] | None, cwd: str, *, feeds: bool, output_limit: int | None
    ) -> Command:
        check_argv(argv)
        place = str(PurePosixPath(WORKSPACE, cwd))
        programs: list[Program] = []
        async with self._running().live().turns, spawn_turn():
            command = self._command(Launch(argv, self._admit(env, place), place), programs, feeds, output_limit)
            self._active.add(command)
            started = asyncio.create_task(programs[0].started(), name=f"start in {self.name}")
            try:
                await shielded(started, within_s=_CLOSE_S)
            except BaseException as error:
                await self._abandon(command, started=started)
                if isinstance(error, RuntimeFault):
                    self._check_unbroken(command)
                raise
        return command

    def _command(self, launch: Launch, programs: list[Program], feeds: bool, output_limit: int | None) -> Command:
        box = self._running()

        def spawn(launch: Launch, *streams: int) -> Program:
            program = Program(
                box.live(),
                launch,
                streams,
                limits=box.limits(),
                doors=box.groups.doors,
                own_network=box.own_network,
            )
            programs.append(program)
            return program

        return Command(
            launch,
            Quarry(launch.env[MARK], "", time.monotonic()),
            feeds=feeds,
            output_limit=self.config.output_limit if output_limit is None else output_limit,
            spawn=spawn,
        )

    async def _abandon(self, command: Command, *, started: asyncio.Task[None]) -> None:
        """A program that nobody waits for, or that never began, leaves nothing."""
        try:
            if started.done() and not started.cancelled() and started.exception() is None:
                await shielded(command.end(), within_s=_CLOSE_S)
        finally:
            command.close()
            self._forget(command)

    async def _to_end(self, command: Command, stdin: bytes, timeout_s: float) -> ExecResult:
        try:
            result = await run_to_end(command, stdin, timeout_s)
        finally:
            self._forget(command)
        self._check_unbroken(command)
        return result

    def _admit(self, env: Mapping[str, str] | None, place: str) -> dict[str, str]:
        """The environment of the next program, with its mark."""
        self._commands += 1
        self._seen = None
        mark = f"{self._token}/{self._commands}."
        return {**self._base_env, "PWD": place, **checked(env or {}), MARK: mark}

    def _running(self) -> Box:
        self._standing.check_running()
        return self._box

    def _touched(self) -> Box:
        """For whatever may leave something in the box."""
        box, self._seen = self._running(), None
        return box

    def _check_unbroken(self, command: Command) -> None:
        gone = self._box.channel is None or self._box.channel.closed
        if command.ended_by_box or gone:
            raise RuntimeLost(f"box {self.name} was stopped or reset, or died, while a program ran in it")

    def _forget(self, command: Command) -> None:
        self._active.discard(command)
        if command.survived:
            self._standing.lose()

    async def _end_relays(self) -> None:
        self._urls.clear()
        await self._relays.close()

    async def _close(self) -> None:
        if self._making is None:
            return
        await asyncio.wait({self._making})  # Bounded by whoever awaits the stop.
        for command in self._active:
            command.ended_by_box = True
        await self._end_relays()
        try:
            await self._box.free()
        finally:
            for command in self._active:
                command.close()


async def _connected(link: socket.socket, port: int) -> socket.socket:
    """`link`, connected to a port of its own loopback; closed where that fails."""
    link.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(link, ("127.0.0.1", port))
    except BaseException:
        link.close()
        raise
    return link


def _check_shown(config: SandboxConfig, script: Path) -> None:
    path = os.path.abspath(script)
    if not is_shown(config, path):
        raise RuntimeFault(f"the box does not show {path!r}; add {os.path.dirname(path)!r} to runtime.visible")
