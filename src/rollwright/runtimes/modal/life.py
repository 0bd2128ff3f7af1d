"""The life of one sandbox: made with patience, watched for its end, freed and crossed off the journal. What is done in
it in between is not told here."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from typing import Any, Self

from rollwright.runtimes.journal import Journal
from rollwright.runtimes.local import shielded
from rollwright.runtimes.local.threads import in_thread
from rollwright.runtimes.remote import LinkBroken, RemoteShell, Retry, create_patiently
from rollwright.runtimes.standing import Standing, State
from rollwright.wire import RuntimeFault, RuntimeLost

from .config import ModalConfig
from .link import ModalLink, ended_task
from .processes import OWN, script_line
from .vendor import Vendor, check_installed, ending, meaning, refused, shared_vendor

log = logging.getLogger("rollwright.runtimes")

_CLOSE_S = 120.0
_NOTE_S = 30.0
_MAKING_ENDS_S = 30.0
_WATCH_PAUSE_S = 5.0
CALL_S = 60.0


class ModalLife:
    """Also an async context manager that starts and stops the box."""

    def __init__(
        self,
        config: ModalConfig | None = None,
        *,
        journal: Journal | None = None,
        vendor: Vendor | None = None,
    ) -> None:
        check_installed()
        self.config = config or ModalConfig()
        self._journal = journal or Journal()
        self._vendor = vendor or shared_vendor()
        self._id = secrets.token_hex(6)
        self._standing = Standing(self.name)
        self._reason = ""
        self._epoch = 0
        self._commands = 0
        self._own = ""
        self._asking = False
        self._made_nothing = False
        self._sandbox: Any = None
        self._link: ModalLink | None = None
        self._shell: RemoteShell | None = None
        self._making: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<{self.name} {self._reason or self._standing}, {self._commands} commands>"

    @property
    def name(self) -> str:
        return f"modal-{self._id}"

    async def start(self) -> None:
        self._standing.begin_start()
        self._making = asyncio.create_task(self._make(), name=f"make {self.name}")
        try:
            # The request that makes a sandbox is not cut short: one that is made after we stopped listening would live.
            await asyncio.shield(self._making)
        except BaseException:
            with suppress(RuntimeFault):  # What could not be freed stays in the journal; the first error is the news.
                await self.stop()
            raise
        if self._reason:
            raise RuntimeLost(f"box {self.name} {self._reason}")
        self._standing.end_start()

    async def _make(self) -> None:
        await self._write_down("")
        self._sandbox = await self._created()
        await self._write_down(self._sandbox.object_id)
        self._link = link = ModalLink(self._sandbox, self.name)
        self._watching = asyncio.create_task(self._watch(link), name=f"watch {self.name}")
        self._shell = shell = RemoteShell(link, self.config.directory)
        await shell.install()
        self._own = await self._tell_own(link)

    async def _created(self) -> Any:
        pace = self._vendor.pace(self.config.creates_per_s)
        try:
            return await create_patiently(
                self._create_once, self._meaning, pace=pace, within_s=self.config.start_timeout_s
            )
        except RuntimeFault:
            raise
        except Exception as error:  # The SDK's errors have no common root; this is its border.
            self._made_nothing = meaning(error) is None
            raise refused(error, f"box {self.name}") from error

    async def _create_once(self) -> Any:
        self._asking = True
        try:
            return await self._vendor.create(self.config, self.name)
        finally:
            self._asking = False

    def _meaning(self, error: Exception) -> Retry | None:
        return meaning(error) if self._standing.state is State.STARTING else None

    async def _tell_own(self, link: ModalLink) -> str:
        """The processes that belong to the box itself, so that all others can be told from them."""
        try:
            said = await link.execute(script_line(OWN, self.config.directory), {}, CALL_S)
        except LinkBroken as error:
            raise RuntimeLost(f"box {self.name} does not answer: {error}") from error
        if not said.startswith(b"rollwright own"):
            raise RuntimeFault(f"the first process of box {self.name} did not come up")
        return said.decode().removeprefix("rollwright own").strip()

    async def _write_down(self, sandbox_id: str) -> None:
        """To its end also when cancelled: a write that outlives its caller would come after the last word."""
        clues = {"app": self.config.app, "name": self.name, "sandbox": sandbox_id}
        try:
            await shielded(in_thread(self._journal.open, "modal", self.name, clues), within_s=_NOTE_S)
        except OSError as error:
            raise RuntimeFault(f"box {self.name} could not be written down in {self._journal}: {error}") from error

    async def _watch(self, link: ModalLink) -> None:
        """Know of the sandbox's end when it comes: the SDK's own waits go on for a box whose worker has gone away."""
        while not link.ended.done():
            try:
                await self._sandbox.wait.aio(raise_on_termination=False)
                self._lose("was ended by the vendor or by its first process")
            except Exception as error:  # The SDK's border. A request that failed says nothing about the box.
                if reason := ending(error):
                    self._lose(reason)
                    return
                log.debug("%s: whether it has ended is asked again in %g s: %r", self.name, _WATCH_PAUSE_S, error)
                await asyncio.wait({link.ended}, timeout=_WATCH_PAUSE_S)

    async def stop(self) -> None:
        if self._stopping is None:
            began = self._standing.state is not State.NEW
            self._standing.stop()
            if self._link is not None:
                self._link.end("was stopped")
            self._stopping = asyncio.create_task(self._close(began), name=f"stop {self.name}")
        await shielded(self._stopping, within_s=_CLOSE_S)

    async def _close(self, began: bool) -> None:
        if not began:
            return
        if self._making is not None:
            if self._asking:
                await asyncio.wait({self._making}, timeout=_MAKING_ENDS_S)
            await ended_task(self._making)
        if self._link is not None:
            self._link.end("was stopped")
        if self._watching is not None:
            await ended_task(self._watching)
        await self._let_go()
        sandbox_id = self._sandbox.object_id if self._sandbox is not None else ""
        try:
            if not self._made_nothing:
                # Where this fails, the journal keeps the box for a sweep.
                await self._vendor.free(self.config.app, self.name, sandbox_id)
        finally:
            if self._sandbox is not None:
                await self._sandbox.detach.aio()
        await in_thread(self._journal.close, self.name)

    async def _let_go(self) -> None:
        """Close what this side holds open into the box."""

    async def alive(self) -> bool:
        if not self._standing.running or self._link is None:
            return False
        try:
            async with asyncio.timeout(CALL_S):
                return bool(await self._link.until_ended(self._poll()) is None)
        except (RuntimeFault, LinkBroken, TimeoutError):
            return False

    async def _poll(self) -> Any:
        return await self._sandbox.poll.aio()

    def _running(self) -> RemoteShell:
        if self._reason:
            raise RuntimeLost(f"box {self.name} {self._reason}")
        self._standing.check_running()
        assert self._shell is not None
        return self._shell

    def _linked(self) -> ModalLink:
        assert self._link is not None
        return self._link

    def _check(self, epoch: int) -> None:
        """RuntimeLost for whoever was in the box before it was reset, stopped or lost."""
        if self._standing.state in (State.LOST, State.STOPPED):
            self._running()
        if epoch != self._epoch:
            raise RuntimeLost(f"box {self.name} was reset while a program ran in it")

    def _lose(self, reason: str) -> None:
        if self._standing.state is not State.STOPPED:
            self._standing.lose()
            self._reason = self._reason or reason
        if self._link is not None:
            self._link.end(reason)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()
