"""A call of a script as a forked child of its zygote, seated in a box of this machine.

Pipes, output caps, deadlines and the end of the tree are those of every other command; only the birth is another.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence

from rollwright.runtimes.contract import ExecResult
from rollwright.runtimes.local import Command, Launch, Quarry, sweep
from rollwright.runtimes.local.command import KILL_S
from rollwright.wire import RuntimeFault

from . import channel
from .keeper import keeper
from .seat import Loadable, Seat, Seats
from .zygotes import Offspring, Unwarm, Zygote, check_words

_BIRTH_S = 5.0


class SeatedCommand(Command):
    """A command whose process is born in a zygote."""

    def __init__(
        self, zygote: Zygote, argv: Sequence[str], seat: Seat, quarry: Quarry, *, feeds: bool, output_limit: int
    ) -> None:
        self._zygote = zygote
        self._argv = argv
        self._seat = seat
        self.offspring: Offspring
        launch = Launch(argv, seat.env, seat.cwd)
        super().__init__(launch, quarry, feeds=feeds, output_limit=output_limit, spawn=self._spawn)

    async def end(self) -> None:
        """A child that was asked for and is not there yet cannot be killed: wait for it, or end the zygote."""
        await asyncio.wait({self.offspring.begun}, timeout=_BIRTH_S)
        if not self.offspring.begun.done():
            self._zygote.lose("zygote hangs")
        await super().end()

    async def _await_exit(self, timeout_s: float) -> None:
        """A child's time begins with its call, and not while its zygote is busy with something else (law 6)."""
        await super()._await_exit(timeout_s)
        if not self.offspring.exited.done():
            await asyncio.wait({self.offspring.begun}, timeout=_BIRTH_S)
            left_s = self.offspring.begun_at + timeout_s - asyncio.get_running_loop().time()
            if left_s > 0:
                await super()._await_exit(left_s)

    def _spawn(self, launch: Launch, stdin: int, stdout: int, stderr: int) -> Offspring:
        silent = stdin == subprocess.DEVNULL
        if silent:
            stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        fds = [stdin, stdout, stderr, *([self._seat.ruleset] if self._seat.ruleset >= 0 else [])]
        try:
            self.offspring = self._zygote.fork(_body(self._argv, self._seat, silent=silent), fds)
        finally:
            if silent:
                os.close(stdin)
        return self.offspring


async def run_forked(
    box: Seats, script: Loadable, args: Sequence[str], *, env: Mapping[str, str] | None, stdin: bytes, timeout_s: float
) -> ExecResult:
    """The answer of a forked child; Unwarm where the script has to be run cold instead.

    A child whose zygote died under it is ended with all it started, and raises RuntimeFault: it may have left half of
    its effects in the box, and to run it again would have them twice.
    """
    check_words(args, env)
    zygote = await keeper().zygote(script)
    born: list[tuple[SeatedCommand, Quarry]] = []

    def start(seat: Seat, quarry: Quarry, feeds: bool, output_limit: int) -> Command:
        if not zygote.suits(seat.env):
            raise Unwarm("environment")
        command = SeatedCommand(zygote, args, seat, quarry, feeds=feeds, output_limit=output_limit)
        born.append((command, quarry))
        return command

    result = await box.run_seated(start, env=env, stdin=stdin, timeout_s=timeout_s)
    command, quarry = born[0]
    fault = command.offspring.fault
    if fault:
        await sweep(quarry, within_s=KILL_S)
        if command.offspring.ran:
            raise RuntimeFault(f"{script.path} was cut off in the middle: {fault}")
        raise Unwarm(fault.partition(":")[0])
    return result


def _body(argv: Sequence[str], seat: Seat, *, silent: bool) -> bytes:
    """`silent` where there is nothing to read on stdin."""
    told: dict[str, object] = {name: getattr(seat, name) for name in Seat.__slots__}
    return channel.described(told | {"argv": list(argv), "env": dict(seat.env), "silent": silent})
