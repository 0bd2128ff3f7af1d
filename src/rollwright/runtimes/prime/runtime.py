"""A box at Prime Intellect, held to the contract of every box.

Covered: a virtual machine of its own, an environment that holds nothing of this host, deadlines and caps inside of the
box, commands that run at most once whatever the network does, creating with patience, and the vendor's own deadlines:
a box past its lifetime is RuntimeLost, never a hang. Not covered: programs run as the image's user, usually root, and a
`clean` reset trusts the tools of the box; `replace`, the default, trusts nothing.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rollwright.runtimes.contract import ExecResult, Process, Reach, Warm
from rollwright.runtimes.journal import Clues, Journal
from rollwright.runtimes.local import shielded
from rollwright.runtimes.local.environment import checked
from rollwright.runtimes.local.threads import in_thread
from rollwright.runtimes.remote import Lifetime, LinkBroken, create_patiently
from rollwright.runtimes.slots import CpuSlots
from rollwright.runtimes.standing import Standing, check_argv
from rollwright.runtimes.state import BoxState
from rollwright.wire import RuntimeFault, RuntimeLost

from . import sdk
from .config import PrimeConfig
from .generation import Generation

if TYPE_CHECKING:
    from prime_sandboxes import AsyncSandboxClient

_POST_S = 60.0
_CLOSE_S = 120.0
_NOTE_S = 30.0


class PrimeRuntime:
    """One box. Also an async context manager that starts and stops it."""

    reach = Reach.PROXY_ONLY
    shows_cache = False

    def __init__(
        self, config: PrimeConfig | None = None, *, journal: Journal | None = None, slots: CpuSlots | None = None
    ) -> None:
        self.config = config or PrimeConfig()
        self._journal = journal or Journal()
        self._slots = slots or CpuSlots(math.ceil(self.config.cpu_cores))
        self._id = secrets.token_hex(8)
        self._standing = Standing(self.name)
        self._client: AsyncSandboxClient | None = None
        self._box: Generation | None = None
        self._box_id = ""
        self._asked = False
        """The vendor may have a box of ours, also where we have not learned its id."""
        self._generations = 0
        self._commands = 0
        self._making: asyncio.Task[None] | None = None
        """What starts or resets the box."""
        self._stopping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<{self.name} {self._standing}, {self._commands} commands, {self._generations} boxes>"

    @property
    def name(self) -> str:
        return f"prime-{self._id}"

    async def start(self) -> None:
        self._standing.begin_start()
        try:
            await self._see_through(self._begin_life())
        except BaseException as error:
            try:
                await self.stop()
            except RuntimeFault as left:  # The journal still has the box; why it did not start is what counts.
                error.add_note(f"and it could not be freed: {left}")
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
        box = self._begin(argv)
        limit = self.config.output_limit if output_limit is None else output_limit
        try:
            return await box.run(argv, checked(env or {}), stdin, cwd, timeout_s, limit)
        finally:
            self._look_at(box)

    async def open_process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = ""
    ) -> Process:
        box = self._begin(argv)
        return await box.open_process(argv, checked(env or {}), cwd, lambda: self._look_at(box))

    async def read(self, path: str) -> bytes:
        box = self._running()
        return await box.within(box.shell.read(path, self.config.read_limit))

    async def write(self, path: str, data: bytes) -> None:
        box = self._running()
        await box.within(box.shell.write(path, data))

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
        """Run a PEP 723 script with an interpreter that is made once per box. `warm` loads it once between resets."""
        box, given = self._running(), checked(env or {})
        try:
            if not warm:
                return await box.scripts.run_script(script, args, given, stdin, timeout_s, takes_slot)
            limit = self.config.output_limit
            return await box.scripts.run_warm(box.inbox, script, args, given, stdin, timeout_s, limit, takes_slot)
        finally:
            self._look_at(box)

    async def expose(self, port: int) -> str:
        box = self._running()
        return await box.within(box.expose(port))

    async def forward(self, port: int) -> str:
        box = self._running()
        if self.config.forward_via:
            return self.config.forward_via.replace("{port}", str(port)).rstrip("/")
        return await box.within(box.forward(port))

    async def alive(self) -> bool:
        box = self._box
        if not self._standing.running or box is None or box.lifetime.left_s() <= 0 or self._client is None:
            return False
        try:
            with sdk.told(f"the state of box {box.id}"):
                return await sdk.is_running(self._client, box.id)
        except (RuntimeFault, LinkBroken):
            return False

    async def inspect(self) -> BoxState:
        box = self._running()
        return await box.within(box.inspect())

    async def reset(self) -> None:
        box = self._running()
        self._standing.begin_reset()
        try:
            await self._see_through(self._clean(box) if self.config.reset == "clean" else self._replace(box))
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

    async def _see_through(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what makes a box, in a task that ends with its caller and before a stop frees what it made."""
        self._making = making = asyncio.create_task(work, name=f"make {self.name}")
        try:
            await asyncio.wait({making})
        finally:
            making.cancel()
            await asyncio.wait({making})
            if not making.cancelled():
                making.exception()  # Looked at, also where our own cancellation is what goes on.
        if making.cancelled():
            raise RuntimeLost(f"box {self.name} was stopped while it was made")
        making.result()

    async def _begin_life(self) -> None:
        self._client = await sdk.take_client()
        await self._create()

    async def _create(self) -> None:
        """Create a box and wait until programs can run in it, both within one deadline."""
        assert self._client is not None
        client, self._generations = self._client, self._generations + 1
        key = f"{self._id}-{self._generations}"
        await self._note({})
        self._asked = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.config.start_timeout_s
        try:
            await create_patiently(
                lambda: shielded(self._post(client, key), within_s=_POST_S),
                sdk.meaning,
                pace=sdk.pace(self.config),
                within_s=self.config.start_timeout_s,
            )
        except (RuntimeFault, asyncio.CancelledError):
            raise
        except Exception as error:
            self._asked = False
            raise RuntimeFault(f"the vendor refused to create a box: {_words(error)}") from error
        lifetime = Lifetime(self.config.lifetime_minutes * 60.0, self.config.idle_minutes * 60.0)
        box = self._box = Generation(client, self.config, self._box_id, lifetime, self._slots)
        await self._note({"id": box.id})
        try:
            async with asyncio.timeout_at(deadline):
                with sdk.told(f"starting box {box.id}"):
                    await client.wait_for_creation(box.id, max_attempts=math.ceil(self.config.start_timeout_s))
                await box.settle()
        except (TimeoutError, LinkBroken) as error:
            raise RuntimeFault(f"box {box.id} did not start in {self.config.start_timeout_s:g} s: {error}") from error

    async def _post(self, client: AsyncSandboxClient, key: str) -> None:
        """The id is noted here, in what a cancellation waits for, so that no box is created and forgotten."""
        self._box_id = await sdk.create(client, self.config, self.name, key)

    async def _clean(self, box: Generation) -> None:
        box.break_off()
        await box.shell.clear()
        await box.close_streams()
        await box.remove_network()
        self._box = Generation(sdk_client(self), self.config, box.id, box.lifetime, self._slots, box)

    async def _replace(self, box: Generation) -> None:
        await self._free(box)
        await self._create()

    async def _free(self, box: Generation) -> None:
        box.break_off()
        await sdk.delete(sdk_client(self), box.id)
        await box.close_streams()
        await box.remove_network()
        self._box, self._box_id = None, ""

    async def _close(self) -> None:
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait({self._making})  # Bounded by whoever awaits the stop.
        if self._client is None:
            return
        try:
            if self._box is not None:
                await self._free(self._box)
            elif self._box_id:
                await sdk.delete(self._client, self._box_id)
            elif self._asked:
                for sandbox_id in await sdk.labelled(self._client, self.name, self.config.team_id):
                    await sdk.delete(self._client, sandbox_id)
            await in_thread(self._journal.close, self.name)
        finally:
            await sdk.let_go()

    def _begin(self, argv: Sequence[str]) -> Generation:
        check_argv(argv)
        self._commands += 1
        return self._running()

    def _running(self) -> Generation:
        self._standing.check_running()
        assert self._box is not None
        self._box.lifetime.check(self.name)
        return self._box

    def _look_at(self, box: Generation) -> None:
        if box.survived:
            self._standing.lose()

    async def _note(self, known: Clues) -> None:
        """Write down what a sweep needs. To its end also when cancelled: it must not come after the last word."""
        clues = {"label": self.name, "team": self.config.team_id, **known}
        await shielded(in_thread(self._journal.open, "prime", self.name, clues), within_s=_NOTE_S)


def sdk_client(runtime: PrimeRuntime) -> AsyncSandboxClient:
    if runtime._client is None:
        raise RuntimeLost(f"box {runtime.name} was never started")
    return runtime._client


def _words(error: Exception) -> str:
    """What the vendor said, where it said something."""
    response = getattr(error, "response", None)
    return f"{error}: {response.text[:500]}" if response is not None else str(error)
