"""A program that is talked to while it runs: the `Process` of the contract on top of a command in a container."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from rollwright.runtimes.contract import ExecResult
from rollwright.runtimes.local import shielded
from rollwright.wire import RuntimeFault

from .exec import Exec
from .hunt import KILL_S


class DockerProcess:
    """Its stdout is read on demand, its stderr is kept up to the output cap. `on_close` is called once, at the end."""

    def __init__(self, command: Exec, check: Callable[[], None], on_close: Callable[[Exec], None]) -> None:
        self._command = command
        self._check = check
        self._on_close = on_close
        self._result: ExecResult | None = None
        self._closed = False

    async def write(self, data: bytes) -> None:
        if not await self._command.feed(data):
            self._check()
            raise RuntimeFault("the program closed its standard input")

    async def close_stdin(self) -> None:
        self._command.close_stdin()

    async def read(self, limit: int = 65536) -> bytes:
        try:
            piece = await self._command.read(limit)
        except RuntimeFault:
            self._check()
            raise
        if not piece:
            self._check()  # The end of a box is not the end of a program's output.
        return piece

    async def wait(self, timeout_s: float) -> ExecResult:
        if self._result is None:
            self._check()
            try:
                self._result = await self._command.finish(timeout_s)
                self._check()
            except RuntimeFault:
                self._check()
                raise
            finally:
                self._close()
        return self._result

    async def kill(self) -> None:
        if not self._closed:
            await shielded(self._command.end(), within_s=2 * KILL_S + 5)

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
