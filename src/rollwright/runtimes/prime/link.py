"""The way into one box: the vendor's command sessions and uploads, as the remote room wants them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rollwright.runtimes.remote import Lifetime, LinkBroken
from rollwright.wire import RuntimeLost

from .sdk import told

if TYPE_CHECKING:
    from prime_sandboxes import AsyncSandboxClient, AsyncSandboxProcess

log = logging.getLogger("rollwright.runtimes")

_UPLOAD_S = 300
_PATIENCE_S = 15.0
_OWN = """for fd in /proc/$$/fd/*; do fd=${fd##*/}; case $fd in [012]) ;; *) eval "exec $fd>&-";; esac; done; """
"""Said to the vendor's bash first: descriptors that leaked into it would be kept open by daemons of the user, and the
vendor would wait for their end instead of the command's."""


class PrimeLink:
    """Requests never outlive the box: past its lifetime they end in RuntimeLost, whatever the vendor does."""

    def __init__(self, client: AsyncSandboxClient, sandbox_id: str, lifetime: Lifetime) -> None:
        self._client = client
        self._id = sandbox_id
        self._lifetime = lifetime

    async def execute(self, line: str, env: Mapping[str, str], timeout_s: float) -> bytes:
        async with self._bounded(timeout_s):
            with told(f"a command in box {self._id}"):
                answer = await self._client.execute_command(
                    self._id, _OWN + line, env=dict(env), timeout=max(1, math.ceil(timeout_s))
                )
        return str(answer.stdout).encode()

    async def upload(self, path: str, data: bytes) -> None:
        async with self._bounded(_UPLOAD_S):
            for tries in range(1, 5):
                try:
                    with told(f"an upload to box {self._id}"):
                        await self._client.upload_bytes(self._id, path, data, "data", timeout=_UPLOAD_S)
                    return
                except LinkBroken as error:  # An upload replaces the file, so it may be repeated.
                    if tries == 4:
                        raise RuntimeLost(f"box {self._id} takes no upload after {tries} tries: {error}") from error
                    log.debug("box %s: a file of %d bytes is brought again: %s", self._id, len(data), error)
                    await asyncio.sleep(0.1 * 2**tries)

    async def open(self, line: str, env: Mapping[str, str]) -> PrimeWire:
        async with self._bounded(_UPLOAD_S):
            with told(f"a process in box {self._id}"):
                process = await self._client.open_process(self._id, _OWN + line, env=dict(env))
        # The SDK would attach to a broken stream again and go on without what was written meanwhile. Output with a hole
        # in it is worse than none, so a break is told.
        process._reconnect = None
        return PrimeWire(process, self._id)

    def _bounded(self, seconds: float) -> _Bounded:
        self._lifetime.check(self._id)
        self._lifetime.touch()
        return _Bounded(self._lifetime.bound(seconds + _PATIENCE_S), self._id)


class _Bounded:
    """A deadline that says what it means when it passes."""

    def __init__(self, seconds: float, name: str) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._seconds = seconds
        self._name = name

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self._timeout.__aexit__(*exc)  # type: ignore[arg-type]
        except TimeoutError as error:
            raise RuntimeLost(f"box {self._name} did not answer within {self._seconds:.0f} s") from error


class PrimeWire:
    """The stream of one live process."""

    def __init__(self, process: AsyncSandboxProcess, name: str) -> None:
        self._process = process
        self._name = name

    async def write(self, data: bytes) -> None:
        with told(f"input of a process in box {self._name}"):
            try:
                await self._process.write_stdin(data)
            except BrokenPipeError as error:
                raise LinkBroken("the process has ended") from error

    async def read(self) -> bytes:
        with told(f"output of a process in box {self._name}"):
            async for piece in self._process.stdout:
                return bytes(piece)
        return b""

    async def ended(self) -> bytes:
        with told(f"the end of a process in box {self._name}"):
            return b"".join([piece async for piece in self._process.stderr])

    async def close(self) -> None:
        await self._process.aclose()

    async def abandon(self) -> None:
        """Close without a word to the process, which has ended with its box. The SDK would signal it in vain."""
        self._process._remote_exited = True
        await self._process.aclose()
