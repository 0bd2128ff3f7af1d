"""A program that is talked to while it runs: the `Process` of the contract on top of a command."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from rollwright.runtimes.contract import ExecResult
from rollwright.wire import RuntimeFault

from .command import KILL_S, Command
from .shield import shielded


class LocalProcess:
    """Its stdout is read on demand, its stderr is kept up to the output cap. `on_close` is called once, at the end."""

    def __init__(self, command: Command, check: Callable[[], None], on_close: Callable[[Command], None]) -> None:
        self._command = command
        self._check = check
        self._on_close = on_close
        self._result: ExecResult | None = None
        self._closed = False

    async def write(self, data: bytes) -> None:
        if self._command.stdin is None or not await self._command.stdin.feed(data):
            self._check()
            raise RuntimeFault("the program closed its standard input")

    async def close_stdin(self) -> None:
        if self._command.stdin is not None:
            self._command.stdin.close()

    async def read(self, limit: int = 65536) -> bytes:
        piece = await self._command.stdout.read(limit)
        if not piece:
            self._check()  # The end of a box is not the end of a program's output.
        return piece

    async def wait(self, timeout_s: float) -> ExecResult:
        if self._result is None:
            self._check()
            try:
                self._result = await self._command.finish(timeout_s)
                self._check()
            finally:
                self._close()
        return self._result

    async def kill(self) -> None:
        if not self._closed:
            await shielded(self._command.end(), within_s=KILL_S + 2)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        try:
            await self.kill()
        finally:
            self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._command.close()
            self._on_close(self._command)
