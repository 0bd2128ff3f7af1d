"""The programs of one container: starting them, knowing which run, and ending them. One crew lives as long as its
container."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

from rollwright.runtimes.contract import ExecResult
from rollwright.runtimes.local import shielded
from rollwright.runtimes.local.census import MARK
from rollwright.runtimes.local.environment import checked
from rollwright.runtimes.standing import check_argv
from rollwright.wire import RuntimeFault, RuntimeLost

from .api import Engine
from .config import DockerConfig
from .containers import Container
from .exec import Exec, run_to_end
from .hunt import KILL_S, SCRIPT, hunt_outside
from .process import DockerProcess
from .spec import env_words

_WRAP = ("sh", "-c", 'exec "$@"', "sh")
"""A shell tells of a missing program in the same way on every engine."""
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class Order:
    """A program to start. Secrets travel in `env`, never in `argv`."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    limit: int
    feeds: bool
    user: str = ""
    is_hunter: bool = False
    """It ends other programs; where it cannot be ended itself, nobody is sent after it."""


class Crew:
    """`give_up` is called when a program cannot be ended: it ends the container."""

    def __init__(
        self,
        engine: Engine,
        container: Container,
        config: DockerConfig,
        token: str,
        give_up: Callable[[], Awaitable[None]],
    ) -> None:
        self._engine = engine
        self._container = container
        self._config = config
        self._token = token
        self._give_up = give_up
        self._since = time.monotonic()
        self._active: set[Exec] = set()
        self._broken_off = False
        self.environment: dict[str, str] = {}
        """What every program is given besides the image's own variables."""
        self.started = 0

    def __len__(self) -> int:
        return len(self._active)

    @property
    def output_limit(self) -> int:
        return self._config.output_limit

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        cwd: str = "",
        timeout_s: float = 60.0,
        output_limit: int | None = None,
        user: str = "",
        is_hunter: bool = False,
    ) -> ExecResult:
        limit = self._config.output_limit if output_limit is None else output_limit
        order = Order(argv, env or {}, cwd, limit, feeds=bool(stdin), user=user, is_hunter=is_hunter)
        command = await self._launch(order)
        try:
            result = await run_to_end(command, stdin, timeout_s)
            self._check(command)
        except RuntimeFault:
            self._check(command)
            raise
        finally:
            self._active.discard(command)
        return result

    async def open(self, argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: str = "") -> DockerProcess:
        command = await self._launch(Order(argv, env or {}, cwd, self._config.output_limit, feeds=True))
        return DockerProcess(command, lambda: self._check(command), self._active.discard)

    def break_off(self) -> None:
        """The container is about to go: whatever runs has no result any more, and nothing new starts."""
        self._broken_off = True
        for command in self._active:
            command.ended_by_box = True

    def check_box(self) -> None:
        if self._broken_off:
            raise RuntimeLost("the box was stopped or reset while it was used")

    def close(self) -> None:
        for command in list(self._active):
            command.close()

    async def _launch(self, order: Order) -> Exec:
        """Start a program. Once the engine was asked, a cancelled caller still waits for the program and ends it."""
        check_argv(order.argv)
        starting = asyncio.create_task(self._start(order), name=f"start {order.argv[0]}")
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            with suppress(RuntimeFault):
                command = await shielded(starting, within_s=_START_S)
                try:
                    await shielded(command.end(), within_s=2 * KILL_S + 5)
                finally:
                    command.close()
                    self._active.discard(command)
            raise

    async def _start(self, order: Order) -> Exec:
        self.started += 1
        mark = f"{self._token}/{self.started}."
        given = {**self.environment, **checked(order.env), MARK: mark}
        body = {
            "AttachStdin": order.feeds,
            "AttachStdout": True,
            "AttachStderr": True,
            "Cmd": [*_WRAP, *order.argv],
            "Env": env_words(given),
            "WorkingDir": self.place(order.cwd),
            "User": order.user or self._config.user or "0",
        }
        made = await self._engine.call("POST", f"/containers/{self._container.id}/exec", body=body)
        exec_id = str(made.value["Id"])
        streams = await self._engine.take_over(f"/exec/{exec_id}/start", {"Detach": False, "Tty": False})
        hunt = None if order.is_hunter else self._hunt
        command = Exec(self._engine, self._container.id, exec_id, mark, streams, hunt, self._give_up, order.limit)
        command.ended_by_box = self._broken_off
        self._active.add(command)
        return command

    def place(self, path: str) -> str:
        """`path` inside the box: relative to the workspace, or absolute."""
        if "\0" in path:
            raise RuntimeFault("a path holds a NUL byte")
        return str(PurePosixPath(self._config.workdir, path))

    async def _hunt(self, mark: str, pid: int) -> None:
        if self._container.pid:
            await hunt_outside(mark, pid, self._since)
            return
        words = ["sh", "-c", SCRIPT, "sh", f"{MARK}={mark}"]
        result = await self.run(words, cwd="/", timeout_s=KILL_S, user="0", is_hunter=True)
        if not result.ok:
            raise RuntimeFault(f"programs in the box could not be ended: {result.stderr[-500:]!r}")

    def _check(self, command: Exec) -> None:
        if command.ended_by_box:
            raise RuntimeLost("the box was stopped or reset while a program ran in it")
