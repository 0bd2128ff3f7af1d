"""A box on this machine: its own directories, process tree and environment, resource limits, and no more.

Covered: an allow-listed environment, a private workspace, HOME and TMPDIR, a session per command, limits per process,
deadlines, output caps, the end of every process the box started, double-forked daemons included, and, where the kernel
has landlock, writing elsewhere and looking into the owner's process (see local/confine.py).
Not covered: the network, the kernel, reading the user's files, changing modes and times of the user's files, signals to
the user's other processes, objects of IPC and the user's keyring, the sum of memory over many processes, and processes
that erase every trace of where they came from (see local/census.py). Code that nobody has read belongs in a stronger
kind.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from rollwright.wire import RuntimeFault, RuntimeLost, UsageError

from .contract import ExecResult, Process, Reach, RuntimeConfig, Warm
from .journal import Clues, Journal
from .local import (
    BoxDir,
    Command,
    Confinement,
    Launch,
    Limits,
    LocalProcess,
    Quarry,
    find,
    host_environment,
    run_to_end,
    shielded,
    spawn_turn,
    sweep,
)
from .local.census import MARK
from .local.command import KILL_S
from .local.confine import DEVICES, LOOKING
from .local.environment import checked
from .local.inspection import files_below, ports_of, processes_told
from .local.limits import Gate
from .local.threads import Chores, in_thread
from .scripts import run_script
from .slots import UNCOUNTED, CpuSlots
from .standing import Standing, check_argv
from .state import BoxState
from .warm.seat import Seat, Starter

KIND = "subprocess"
_CLOSE_S = 60.0
_NAMED = re.compile(r"rollwright-box-[0-9a-f]+")
_TOKEN = re.compile(r"[0-9a-f]{32}")


class SubprocessConfig(RuntimeConfig, frozen=True, kw_only=True, tag_field="kind", tag="subprocess"):
    """Plain processes of this machine. Zero in a limit means that the host's own limit stays."""

    directory: str = ""
    """Where boxes are made; empty is the system's directory for temporary files."""
    allow_env: tuple[str, ...] = ()
    """Names of further host variables that programs in the box may see."""
    memory_mb: int = 4096
    """Private writable memory of each process; an allocation beyond it fails in the program."""
    cpu_s: int = 0
    """CPU time of each process; it is ended by SIGXCPU beyond it."""
    file_mb: int = 4096
    """Size of each file that a program writes; it is ended by SIGXFSZ beyond it."""
    open_files: int = 4096
    """Descriptors of each process."""
    output_limit: int = 1 << 20
    """Bytes kept of each output stream of a command; the rest is read, dropped and counted."""
    read_limit: int = 64 << 20
    """Largest file that `read` returns, in bytes."""
    confine_writes: bool = True
    """Programs write only below the box's own directories. It takes a kernel with landlock; others do not confine."""
    allow_writes: tuple[str, ...] = ()
    """Further places that programs may write, such as /dev/shm, which Python's multiprocessing needs. What is left
    there outlives the box."""

    def __post_init__(self) -> None:
        for path in self.allow_writes:
            if not os.path.isabs(path):
                raise UsageError(f"runtime.allow_writes has {path!r}; name places by their absolute paths")
        for name in ("memory_mb", "cpu_s", "file_mb", "open_files", "output_limit", "read_limit"):
            if getattr(self, name) < 0:
                raise UsageError(f"runtime.{name} is {getattr(self, name)}; set it to 0 or more")


class SubprocessRuntime:
    """One box. Also an async context manager that starts and stops it."""

    reach = Reach.HOST
    shows_cache = True

    def __init__(
        self,
        config: SubprocessConfig | None = None,
        *,
        slots: CpuSlots | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.config = config or SubprocessConfig()
        self._slots = slots
        self._journal = journal or Journal()
        self._id = secrets.token_hex(6)
        self._token = secrets.token_hex(16)
        self._limits = Limits(self.config.memory_mb, self.config.cpu_s, self.config.file_mb, self.config.open_files)
        self._seat_limits: Mapping[str, int] = {}
        self._standing = Standing(self.name)
        self._active: set[Command] = set()
        self._commands = 0
        self._since = 0.0
        self._box: BoxDir | None = None
        self._chores = Chores()
        self._confinement = Confinement()
        self._base_env: dict[str, str] = {}
        self._making: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<{self.name} {self._standing}, {len(self._active)} active, {self._commands} commands>"

    @property
    def name(self) -> str:
        return f"{KIND}-{self._id}"

    @property
    def writable_paths(self) -> tuple[str, ...]:
        """The only places that programs in this box can write; empty where their writes are not confined."""
        self._running()
        return self._confinement.writable if self._confinement.confines_writes else ()

    async def start(self) -> None:
        self._standing.begin_start()
        self._since = time.monotonic()
        self._seat_limits = self._limits.numbers()
        self._box = box = BoxDir(self._place())
        self._base_env = host_environment(self.config.allow_env) | {"HOME": box.home, "TMPDIR": box.tmp}
        self._making = asyncio.create_task(self._chores.do(self._make, box), name=f"make {self.name}")
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
        command, check = await self._launch(argv, env, cwd, feeds=bool(stdin), output_limit=output_limit)
        try:
            result = await run_to_end(command, stdin, timeout_s)
        finally:
            self._forget(command)
        check()
        return result

    async def open_process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = ""
    ) -> Process:
        command, check = await self._launch(argv, env, cwd, feeds=True, output_limit=None)
        return LocalProcess(command, check, self._forget)

    async def read(self, path: str) -> bytes:
        return await self._chores.do(self._running().read, path, self.config.read_limit)

    async def write(self, path: str, data: bytes) -> None:
        await self._chores.do(self._running().write, path, data)

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
        """Run a PEP 723 script with the dependencies it declares. `warm` never changes the answer, only its price."""
        self._running()
        slots = self._slots if takes_slot else UNCOUNTED
        return await run_script(self, script, args, env=env, stdin=stdin, timeout_s=timeout_s, slots=slots, warm=warm)

    def seat(self, env: Mapping[str, str] | None) -> Seat:
        """What the next program starts with, for one that is loaded already (see warm/)."""
        place = self._running().workspace
        given = self._admit(env, place)
        rules = self._confinement.ruleset
        return Seat(given, place, given[MARK], self._seat_limits, self.writable_paths, rules, LOOKING)

    async def run_seated(
        self, start: Starter, *, env: Mapping[str, str] | None, stdin: bytes, timeout_s: float
    ) -> ExecResult:
        """As `run`, for a program that is born elsewhere and takes its seat here."""
        seat = self.seat(env)
        command = start(seat, Quarry(seat.mark, "", time.monotonic()), bool(stdin), self.config.output_limit)
        self._active.add(command)
        try:
            result = await run_to_end(command, stdin, timeout_s)
        finally:
            self._forget(command)
        self._check_unbroken(command)
        return result

    async def expose(self, port: int) -> str:
        self._running()
        return f"http://127.0.0.1:{port}"

    async def forward(self, port: int) -> str:
        self._running()
        return f"http://127.0.0.1:{port}"

    async def alive(self) -> bool:
        return self._standing.running and self._box is not None and self._box.there()

    async def inspect(self) -> BoxState:
        root = self._running().root
        # A box in which nothing was run has no processes to look for.
        seen = await find(self._quarry(root)) if self._commands else []
        files = await in_thread(files_below, root)
        ports = await in_thread(ports_of, seen) if seen else ()
        return BoxState(files, processes_told(seen), ports, dict(self._base_env))

    async def reset(self) -> None:
        box = self._running()
        self._standing.begin_reset()
        self._making = asyncio.create_task(self._renew(box), name=f"reset {self.name}")
        try:
            # It goes on where we are cancelled, and a stop waits for it: two threads would empty the box at once.
            await asyncio.shield(self._making)
        except BaseException:
            # Half a reset is none: this box is never used again, it can only be stopped.
            self._standing.lose()
            raise
        self._standing.end_reset()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def _launch(
        self, argv: Sequence[str], env: Mapping[str, str] | None, cwd: str, *, feeds: bool, output_limit: int | None
    ) -> tuple[Command, Callable[[], None]]:
        """Start a program, and a check that raises RuntimeLost once the box was stopped or reset under it."""
        check_argv(argv)
        async with spawn_turn():
            box = self._running()
            place = box.resolve(cwd)
            given = self._admit(env, place)
            gate = Gate.ON_STDIN if feeds else Gate.BEFORE_NULL
            command = Command(
                Launch(self._limits.wrap(argv, gate=gate), given, place, self._confinement),
                Quarry(given[MARK], "", time.monotonic()),
                feeds=feeds,
                output_limit=self.config.output_limit if output_limit is None else output_limit,
            )
            self._active.add(command)
        return command, lambda: self._check_unbroken(command)

    def _admit(self, env: Mapping[str, str] | None, place: str) -> dict[str, str]:
        """The environment of the next program, with its mark."""
        self._commands += 1
        mark = f"{self._token}/{self._commands}."
        return {**self._base_env, "PWD": place, **checked(env or {}), MARK: mark}

    def _place(self) -> str:
        parent = os.path.realpath(self.config.directory or tempfile.gettempdir())
        return os.path.join(parent, f"rollwright-box-{self._id}")

    def _make(self, box: BoxDir) -> None:
        """What can be lost is written down first."""
        self._journal.open(KIND, self.name, {"directory": box.root, "mark": self._token})
        box.make()
        for path in self.config.allow_writes:
            if not os.path.exists(path):
                raise RuntimeFault(f"runtime.allow_writes names {path!r}, which does not exist")
        try:
            self._confinement = Confinement(self._writable(box))
        except OSError as error:
            raise RuntimeFault(f"could not confine the box: {error}; or set confine_writes to false") from error

    def _free(self, box: BoxDir, *, forget: bool) -> None:
        """A box that left something behind stays written down, for a sweep to find."""
        self._confinement.close()
        box.remove()
        if forget:
            self._journal.close(self.name)

    def _writable(self, box: BoxDir) -> tuple[str, ...]:
        return (box.root, *DEVICES, *self.config.allow_writes) if self.config.confine_writes else ()

    def _quarry(self, root: str) -> Quarry:
        return Quarry(f"{self._token}/", root, self._since)

    def _running(self) -> BoxDir:
        self._standing.check_running()
        assert self._box is not None
        return self._box

    def _check_unbroken(self, command: Command) -> None:
        if command.ended_by_box:
            raise RuntimeLost(f"box {self.name} was stopped or reset while a program ran in it")

    def _forget(self, command: Command) -> None:
        self._active.discard(command)
        if command.survived:
            self._standing.lose()

    async def _renew(self, box: BoxDir) -> None:
        await self._end_all()
        await in_thread(box.renew)

    async def _end_all(self) -> None:
        for command in self._active:
            command.ended_by_box = True
            command.child.kill_group()
        if self._active:
            # One that was asked for in this moment is born and killed first, so that the sweep sees it.
            await asyncio.wait({command.child.exited for command in self._active}, timeout=KILL_S)
        if self._commands and self._box is not None:
            await sweep(self._quarry(self._box.root), within_s=KILL_S)
        await self._chores.done()

    async def _close(self) -> None:
        if self._box is None or self._making is None:
            return
        ended = False
        try:
            await asyncio.wait({self._making})  # Bounded by whoever awaits the stop.
            if not self._making.cancelled():
                self._making.exception()  # Looked at: who began it may have been cancelled.
            await self._end_all()
            ended = True
        finally:
            for command in self._active:
                command.close()
            await in_thread(self._free, self._box, forget=ended)


async def free(clues: Clues) -> None:
    """End and remove what a box left whose owner is gone. Idempotent."""
    directory, token = clues.get("directory", ""), clues.get("mark", "")
    if not _NAMED.fullmatch(os.path.basename(directory)) or not _TOKEN.fullmatch(token):
        raise RuntimeFault(f"{clues} does not lead to a box of this kind")
    await sweep(Quarry(f"{token}/", directory, 0.0), within_s=KILL_S)
    await in_thread(BoxDir(directory).remove)
