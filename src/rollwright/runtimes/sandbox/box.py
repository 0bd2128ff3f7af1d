"""A box from the owner's side: made, looked at, emptied and freed. It knows nothing of commands and of the contract.

What is made, after a note in the journal: a channel to the warden, by the warden the namespaces and mounts, and control
groups. Everything is freed in the other order; the note goes last.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Mapping
from contextlib import suppress

from rollwright.runtimes.journal import Journal
from rollwright.runtimes.local.threads import Chores, in_thread
from rollwright.runtimes.state import BoxState
from rollwright.wire import RuntimeFault, RuntimeLost

from . import cgroups
from .channel import Channel
from .config import SandboxConfig
from .ipc import Ipc
from .keeper import keeper
from .layout import counts_of, ipc_tables, order, watches_queues
from .looks import look
from .ports import are_waiting, end_waiting
from .sweep import SEPARATOR

KIND = "sandbox"


class Box:
    """One box. `channel` is there after `make`."""

    def __init__(self, name: str, config: SandboxConfig, journal: Journal) -> None:
        self.name = name
        self.config = config
        self.own_network = config.network == "none"
        self.channel: Channel | None = None
        self.pid = 0
        """Its first process, which holds the namespaces."""
        self.root = -1
        """Its root directory, as a descriptor. What uses it in a thread is one of the `chores`: a number that was
        closed under it may be another box's by then."""
        self.chores = Chores()
        self.groups = cgroups.Groups()
        self._recipe = cgroups.recipe(cgroups.Bounds(config.memory_mb, config.cpus, config.pids))
        self._group_name = f"rollwright-{name}"
        self._journal = journal
        self.rules = -1
        """Landlock's rules for the places as they are mounted now; -1 where the kernel has no such rules."""
        self._diag = -1
        self._counts = -1
        self._ipc = Ipc()
        self._upper = -1
        self._noted = False

    async def make(self) -> None:
        self.channel = Channel(await in_thread(self._begin))
        reply, fds = await self.channel.opened()
        self._keep(self._keep_views(fds))
        if reply["groups"] is None:  # bwrap makes none.
            self.groups = await in_thread(cgroups.make, self._group_name, self._recipe)
        else:
            self.groups = self._recipe.groups(self._group_name, reply["groups"])
        self.pid = reply["pid"]
        # A path of the kernel's own, which nothing holds up: no thread is asked for it.
        self.root = os.open(f"/proc/{self.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    async def clear(self) -> None:
        """End everything that runs in it, and mount every place that could be written anew."""
        channel = self.live()
        await channel.quiet()
        await self.chores.done()
        _, fds = await channel.ask("clear")
        self._keep(fds)
        if self._ipc.objects():
            await self.chores.do(self._ipc.unlink_queues)
            await channel.ask("empty_ipc")
        # Files of the kernel's own, which nothing holds up: no thread is asked to read them.
        if are_waiting(self._counts):
            await self.chores.do(end_waiting, self._diag)

    async def look(self, environment: Mapping[str, str]) -> BoxState:
        try:
            return await self.chores.do(
                look, self.pid, environment, self._ipc, diag=self._diag, own_network=self.own_network, upper=self._upper
            )
        except OSError as error:
            raise RuntimeLost(f"box {self.name} is gone: {error}") from error

    async def free(self) -> None:
        """End the box and remove what was made for it. What could not be removed stays written down for a sweep."""
        if self.channel is not None:
            with suppress(RuntimeLost):  # It is gone already.
                await self.channel.ask("stop")
            self.channel.close()
        await self.chores.done()
        self._keep([])
        for fd in (self.root, self._diag, self._counts):
            if fd >= 0:
                os.close(fd)
        self.root = self._diag = self._counts = -1
        await in_thread(self._remove)

    def live(self) -> Channel:
        if self.channel is None or self.channel.closed:
            raise RuntimeLost(f"box {self.name} is gone")
        return self.channel

    def limits(self) -> dict[str, int]:
        """Bounds of each process, by their names in `resource`; memory only where no control group bounds it."""
        limits = {"RLIMIT_CORE": 0, "RLIMIT_CPU": self.config.cpu_s, "RLIMIT_NOFILE": self.config.open_files}
        if "memory" not in self.groups.controllers:
            limits["RLIMIT_DATA"] = self.config.memory_mb << 20
        kept = {name: value for name, value in limits.items() if value or name == "RLIMIT_CORE"}
        return {name: _lower(name, value) for name, value in kept.items()}

    def _begin(self) -> socket.socket:
        self._note()
        return keeper.channel(self._recipe.paths(self._group_name), order(self.config, self._recipe))

    def _note(self) -> None:
        clues = {"groups": SEPARATOR.join(self._recipe.paths(self._group_name))}
        try:
            self._journal.open(KIND, self.name, clues)
        except OSError as error:
            raise RuntimeFault(f"could not write {self._journal!r}: {error}; set ROLLWRIGHT_CACHE_DIR") from error
        self._noted = True

    def _remove(self) -> None:
        self._ipc.close()
        try:
            cgroups.remove(self._recipe.paths(self._group_name))
        except OSError as error:
            raise RuntimeFault(f"could not remove the control groups of {self.name}: {error}") from error
        if self._noted:
            self._journal.close(self.name)

    def _keep_views(self, fds: list[int]) -> list[int]:
        """Of what came with a new box, keep what shows its network and IPC; the rest."""
        rest, names = iter(fds), ipc_tables()
        self._diag = next(rest)
        self._counts = next(rest) if counts_of(self.config) else -1
        tables = [next(rest) for _ in names]
        self._ipc = Ipc(names, tables, next(rest) if watches_queues() else -1)
        return list(rest)

    def _keep(self, fds: list[int]) -> None:
        """Keep what belongs to the places as they are mounted now, in place of what belonged to those before."""
        for fd in (self.rules, self._upper):
            if fd >= 0:
                os.close(fd)
        self._upper = fds.pop() if fds and self.config.workspace_from else -1
        self.rules = fds.pop() if fds else -1


def _lower(name: str, wanted: int) -> int:
    hard = resource.getrlimit(getattr(resource, name))[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
