"""A pooled box in the hands of one rollout. The hands are empty once the lease is over, whoever still holds this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollwright.runtimes.contract import ExecResult, Process, Reach, Runtime, Warm
from rollwright.runtimes.state import BoxState
from rollwright.wire import RuntimeFault, RuntimeLost


class LeasedRuntime:
    """The box, until `revoke`. Starting, stopping and resetting are the pool's business and are refused.

    A write that is cut off may still arrive later, in a thread or at a provider, when the box has long been cleaned:
    `torn` tells of it, and such a box is not used again.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._over = False
        self._writing = 0
        self._cut_off = False

    def __repr__(self) -> str:
        return f"<leased {self._runtime!r}{', over' if self._over else ''}>"

    @property
    def reach(self) -> Reach:
        return self._runtime.reach

    @reach.setter
    def reach(self, value: Reach) -> None:
        raise RuntimeFault("what a leased box reaches is its own business")

    @property
    def shows_cache(self) -> bool:
        return self._runtime.shows_cache

    @property
    def name(self) -> str:
        return self._runtime.name

    @property
    def torn(self) -> bool:
        """Some write has not ended, or was cut off."""
        return self._cut_off or self._writing > 0

    def revoke(self) -> None:
        self._over = True

    def _box(self) -> Runtime:
        if self._over:
            raise RuntimeLost(f"the lease of {self.name} is over")
        return self._runtime

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
        return await self._box().run(
            argv, env=env, stdin=stdin, cwd=cwd, timeout_s=timeout_s, output_limit=output_limit
        )

    async def open_process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = ""
    ) -> Process:
        return await self._box().open_process(argv, env=env, cwd=cwd)

    async def read(self, path: str) -> bytes:
        return await self._box().read(path)

    async def write(self, path: str, data: bytes) -> None:
        box = self._box()
        self._writing += 1
        try:
            await box.write(path, data)
        except RuntimeFault:
            raise
        except BaseException:
            self._cut_off = True
            raise
        finally:
            self._writing -= 1

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
        return await self._box().run_script(
            script, args, env=env, stdin=stdin, timeout_s=timeout_s, warm=warm, takes_slot=takes_slot
        )

    async def expose(self, port: int) -> str:
        return await self._box().expose(port)

    async def forward(self, port: int) -> str:
        return await self._box().forward(port)

    async def alive(self) -> bool:
        return not self._over and await self._runtime.alive()

    async def inspect(self) -> BoxState:
        return await self._box().inspect()

    async def start(self) -> None:
        raise self._refusal("start")

    async def stop(self) -> None:
        raise self._refusal("stop")

    async def reset(self) -> None:
        raise self._refusal("reset")

    def _refusal(self, what: str) -> RuntimeFault:
        return RuntimeFault(f"{self.name} is leased from a pool, which alone may {what} it")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What only this kind of box has."""
            return getattr(self._box(), name)
