"""A box that tells its rollout how long commands waited for a CPU slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollwright.runtimes import ExecResult, Runtime
from rollwright.runtimes.contract import Warm
from rollwright.traces import LiveTrace


class MeteredRuntime:
    """The box of one rollout. Everything but `run_script` is the box's own."""

    def __init__(self, runtime: Runtime, trace: LiveTrace) -> None:
        self._runtime = runtime
        self._trace = trace

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
        result = await self._runtime.run_script(
            script, args, env=env, stdin=stdin, timeout_s=timeout_s, warm=warm, takes_slot=takes_slot
        )
        self._trace.queued(result.queue_s)
        return result

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return getattr(self._runtime, name)
