"""A program in a box, as the shared machinery for commands wants it: started by the warden, its end told here."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from rollwright.runtimes.local import Launch
from rollwright.wire import RuntimeFault

from .channel import Channel, in_memory
from .layout import WRITABLE


class Program:
    """Asked for at once and started soon after; `started` is awaited before anything else is done with it."""

    def __init__(
        self,
        channel: Channel,
        launch: Launch,
        streams: Sequence[int],
        *,
        limits: Mapping[str, int],
        doors: Sequence[str],
        own_network: bool,
    ) -> None:
        self._channel = channel
        self.exited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pid = 0
        self._status = 0
        self._released = False
        order = {
            "argv": list(launch.argv),
            "env": dict(launch.env),
            "cwd": launch.cwd,
            "limits": dict(limits),
            "cgroups": list(doors),
            "own_network": own_network,
            "writable": WRITABLE,
        }
        told = _described(order)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        body = in_memory(told)
        try:
            given = [nothing if fd == subprocess.DEVNULL else fd for fd in streams]
            self._number, self._starting = channel.begin("spawn", [body, *given])
        finally:
            os.close(body)
            os.close(nothing)
        channel.watch(self._number, self._on_exit)

    async def started(self) -> None:
        """Wait until it runs; RuntimeFault where it could not be started."""
        reply, _ = await self._channel.wait(self._starting, "start a program")
        self.pid = reply["pid"]

    def kill_group(self) -> None:
        """End the program and all that stayed in its group."""
        if self.pid and not self.exited.done():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """The exit status of an ended program; minus the signal's number where a signal ended it."""
        self.release()
        return self._status

    def release(self) -> None:
        """Let the warden reap the program, now or when it ends."""
        if self._released:
            return
        if self.exited.done():
            self._released = True
            self._channel.reap(self._number)
        else:
            self.exited.add_done_callback(lambda _: self.release())

    def _on_exit(self, status: int) -> None:
        self._status = status
        if not self.exited.done():
            self.exited.set_result(None)


def _described(order: dict[str, Any]) -> bytes:
    """An order as JSON. Words that are no Unicode, as names of files may be, are escaped by the slower of two encoders;
    RuntimeFault for those that no program can be given."""
    try:
        return msgspec.json.encode(order)
    except UnicodeEncodeError:
        pass
    try:
        for word in (*order["argv"], *order["env"].values(), order["cwd"]):
            os.fsencode(word)
    except UnicodeEncodeError as error:
        raise RuntimeFault(f"could not start a program in {order['cwd']!r}: {error}") from error
    return json.dumps(order).encode()
