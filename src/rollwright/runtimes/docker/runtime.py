"""A box that is a container: the image's own files, a private process tree, hard limits, and no network unless asked.

Covered: files, processes, memory, cpu, the number of processes, the network, an allow-listed environment, deadlines and
output caps. A reset makes a new container and removes the old one, so that nothing a program did survives it.
Not covered: the kernel, which boxes share with the host and one another, and the disk, which has no quota.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from rollwright.runtimes.contract import ExecResult, Process, Reach, Warm
from rollwright.runtimes.journal import Journal
from rollwright.runtimes.local import shielded
from rollwright.runtimes.local.threads import in_thread
from rollwright.runtimes.slots import UNCOUNTED, CpuSlots
from rollwright.runtimes.standing import Standing
from rollwright.runtimes.state import BoxState
from rollwright.runtimes.warm.inbox import Inbox
from rollwright.wire import RuntimeFault, RuntimeLost

from .api import Engine, address_of
from .config import DockerConfig, Network
from .containers import PULL_S, Container, freed, is_running, made, removed
from .crew import Crew
from .doors import Doors, may_enter
from .egress import AllowList, Proxy
from .files import read_file, write_file
from .images import built
from .look import look
from .scripts import bring_programs, run_script
from .shelf import shelf_dir
from .spec import HOME, Binds, base_environment, container_spec, network_spec

_CLOSE_S = 180.0
_PROXY_PORT = 3128
_LOOKS, _LOOK_S = 10, 0.1


@dataclass(slots=True)
class Inside:
    """The container that is the box at the moment, with what belongs to it and goes with it."""

    engine: Engine
    container: Container
    crew: Crew
    doors: Doors
    shared: bool
    """The engine sees our files."""
    delivered: set[str] = field(default_factory=set)
    """What was put on its shelf, where it is not shared."""
    inbox: Inbox = field(init=False)
    """Scripts that are loaded in it."""

    def __post_init__(self) -> None:
        self.inbox = Inbox(self.crew.open, lambda: bring_programs(self), self.crew.check_box)


class DockerRuntime:
    """One box. Also an async context manager that starts and stops it."""

    # Also with a network of its own a box does not reach this host's loopback but through `forward`.
    reach = Reach.PROXY_ONLY
    shows_cache = False

    def __init__(
        self, config: DockerConfig | None = None, *, slots: CpuSlots | None = None, journal: Journal | None = None
    ) -> None:
        self.config = config or DockerConfig()
        self._address = address_of(self.config.socket)
        self._journal = journal or Journal()
        self._slots = slots
        self._id = secrets.token_hex(6)
        self._token = secrets.token_hex(16)
        self._standing = Standing(self.name)
        self._generation = 0
        self._engine: Engine | None = None
        self._inside: Inside | None = None
        self._binds = Binds()
        self._making: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        active = len(self._inside.crew) if self._inside else 0
        return f"<{self.name} {self._standing}, {active} active, container {self._generation}>"

    @property
    def name(self) -> str:
        return f"docker-{self._id}"

    async def start(self) -> None:
        self._standing.begin_start()
        self._engine = Engine(self._address)
        self._making = asyncio.create_task(self._make_first(), name=f"make {self.name}")
        try:
            await shielded(self._making, within_s=PULL_S + self.config.start_timeout_s)
        except BaseException:
            with suppress(RuntimeFault):  # It stays in the journal; what went wrong first is told.
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
        crew = self._running().crew
        return await crew.run(argv, env=env, stdin=stdin, cwd=cwd, timeout_s=timeout_s, output_limit=output_limit)

    async def open_process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = ""
    ) -> Process:
        return await self._running().crew.open(argv, env, cwd)

    async def read(self, path: str) -> bytes:
        return await read_file(self._running().crew, path, self.config.read_limit)

    async def write(self, path: str, data: bytes) -> None:
        await write_file(self._running().crew, path, data)

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
        """Run a PEP 723 script with the image's python3. `warm` loads it once per container."""
        inside = self._running()
        inbox = inside.inbox if warm else None
        slots = self._slots if takes_slot else UNCOUNTED
        try:
            return await run_script(
                inside, script, args, env=env, stdin=stdin, timeout_s=timeout_s, slots=slots, inbox=inbox
            )
        except RuntimeFault as error:
            if inbox is not None and await self._ends(inside):
                raise RuntimeLost(f"the container of box {self.name} ended while a script ran in it") from error
            raise

    async def _ends(self, inside: Inside) -> bool:
        """Whether the container has ended. The engine learns of it a moment after those who talked to its programs."""
        for _ in range(_LOOKS):
            if not await is_running(inside.engine, inside.container.id):
                return True
            await asyncio.sleep(_LOOK_S)
        return False

    async def expose(self, port: int) -> str:
        return await self._running().doors.outward(port)

    async def forward(self, port: int) -> str:
        return await self._running().doors.to_host(port)

    async def alive(self) -> bool:
        if not self._standing.running or self._inside is None:
            return False
        with suppress(RuntimeFault):
            return await is_running(self._inside.engine, self._inside.container.id)
        return False

    async def inspect(self) -> BoxState:
        inside = self._running()
        places = [HOME, "/tmp", "/dev", *([self.config.workdir] if self.config.read_only else [])]

        async def sh(script: str, words: list[str]) -> ExecResult:
            return await inside.crew.run(["sh", "-c", script, "sh", *words], output_limit=64 << 20, user="0")

        return await look(inside.engine, inside.container, places, dict(inside.crew.environment), sh)

    async def reset(self) -> None:
        """Make a new container and remove the old one, at the same time."""
        inside = self._running()
        self._standing.begin_reset()
        inside.crew.break_off()
        self._making = asyncio.create_task(self._make_anew(inside), name=f"reset {self.name}")
        try:
            await shielded(self._making, within_s=self.config.start_timeout_s + _CLOSE_S)
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

    def _running(self) -> Inside:
        self._standing.check_running()
        assert self._inside is not None
        return self._inside

    async def _make_first(self) -> None:
        assert self._engine is not None
        # Noted before anything is made; the label finds the rest.
        self._binds = await in_thread(self._make_binds)
        clues = {"engine": str(self._address), "name": self.name, "doors": self._binds.doors}
        await in_thread(self._journal.open, "docker", self.name, clues)
        if self.config.network == Network.FULL and not self.config.network_name:
            await self._engine.call("POST", "/networks/create", body=network_spec(self.name))
        self._inside = await self._make(self._engine)

    async def _make_anew(self, old: Inside) -> None:
        """The old container goes while the new one comes. Both are seen to their end, whatever happens to the other."""
        await old.inbox.close()
        await old.doors.close()
        new, gone = await asyncio.gather(
            self._make(old.engine), removed(old.engine, old.container.id), return_exceptions=True
        )
        old.crew.close()
        for outcome in (new, gone):
            if isinstance(outcome, BaseException):
                raise outcome
        assert isinstance(new, Inside)
        self._inside = new

    async def _make(self, engine: Engine) -> Inside:
        self._generation += 1
        config = self.config
        if config.build:
            config = msgspec.structs.replace(config, image=await built(engine, config.build))
        spec = container_spec(config, self.name, self._token, self._binds)
        name = f"rollwright-{self.name}-{self._generation}"
        container = await made(engine, spec, name, pull=self.config.pull)
        crew = Crew(engine, container, self.config, self._token, lambda: self._give_up(container))
        doors = Doors(container.pid, self._binds.doors, crew.open, container.address)
        inside = Inside(engine, container, crew, doors, shared=bool(self._binds.shelf))
        try:
            async with asyncio.timeout(self.config.start_timeout_s):
                await self._furnish(inside)
        except BaseException as error:
            crew.break_off()
            await doors.close()
            crew.close()
            if isinstance(error, TimeoutError):
                raise RuntimeFault(f"box {self.name} was not ready in {self.config.start_timeout_s:g} s") from error
            raise
        return inside

    async def _furnish(self, inside: Inside) -> None:
        """What a started container needs before it is a box: its proxy, and a workspace that belongs to its user."""
        crew, config = inside.crew, self.config
        proxy = ""
        if config.network == Network.ALLOW:
            crew.environment = base_environment(config)
            proxy = await inside.doors.inward(Proxy(AllowList(config.allow_hosts)).serve, _PROXY_PORT)
        crew.environment = base_environment(config, proxy)
        if config.user and not config.read_only:
            owned = await crew.run(["chown", config.user, config.workdir], cwd="/", user="0")
            if not owned.ok:
                raise RuntimeFault(f"the workspace could not be given to {config.user!r}: {owned.stderr!r}")

    def _make_binds(self) -> Binds:
        """Directories that the box sees. One for sockets is needed only where we may not enter its network."""
        if not self._address.local:
            return Binds()
        shelf = shelf_dir()
        shelf.mkdir(parents=True, exist_ok=True)
        doors = "" if may_enter() else tempfile.mkdtemp(prefix="rollwright-doors-")
        if doors:
            Path(doors).chmod(0o711)
        return Binds(str(shelf), doors)

    async def _give_up(self, container: Container) -> None:
        """A program cannot be ended alone: end the container, and with it the box."""
        if self._inside is not None and self._inside.container is container:
            self._standing.lose()
        assert self._engine is not None
        await self._engine.call("POST", f"/containers/{container.id}/kill", allow=(404, 409))

    async def _close(self) -> None:
        if self._engine is None or self._making is None:
            return
        try:
            await asyncio.wait({self._making})  # Bounded by whoever awaits the stop.
            if self._inside is not None:
                self._inside.crew.break_off()
                await self._inside.inbox.close()
                await self._inside.doors.close()
            await freed(self._engine, self.name)
            if self._binds.doors:
                await in_thread(shutil.rmtree, self._binds.doors, ignore_errors=True)
            await in_thread(self._journal.close, self.name)
        finally:
            if self._inside is not None:
                self._inside.crew.close()
            await self._engine.close()
