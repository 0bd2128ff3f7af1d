"""Running PEP 723 scripts in a box with the interpreter that was provisioned for them, cold or warm.

The interpreter is executed directly, with no launcher in between, in the box's environment and workspace. The script is
referenced where it is, so its own directory is first on `sys.path`, as with `uv run`. Warm is another way to the same
answer; whatever goes wrong on that way is counted, and the script is run cold.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from .contract import ExecResult, Runtime, Warm
from .provision import provision
from .slots import CpuSlots, default_slots


async def run_script(
    runtime: Runtime,
    script: Path,
    args: Sequence[str] = (),
    *,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    timeout_s: float = 60.0,
    slots: CpuSlots | None = None,
    warm: Warm = False,
) -> ExecResult:
    """Run `script` in a box of this host.

    Provisioning, loading and the wait for a CPU slot come before the deadline begins; the wait is told in `queue_s`
    (law 6).
    """
    if warm:
        from .warm.calls import run_warm

        return await run_warm(
            runtime, script, args, env=env, stdin=stdin, timeout_s=timeout_s, slots=slots, shared=warm == "shared"
        )
    python = await provision(script)
    async with (slots or default_slots()).take() as queue_s:
        result = await run_cold(runtime, python, script, args, env=env, stdin=stdin, timeout_s=timeout_s)
    return msgspec.structs.replace(result, queue_s=queue_s)


async def run_cold(
    runtime: Runtime,
    python: Path,
    script: Path,
    args: Sequence[str],
    *,
    env: Mapping[str, str] | None,
    stdin: bytes,
    timeout_s: float,
) -> ExecResult:
    """One process, one answer."""
    words = [os.fspath(python), absolute(script), *args]
    return await runtime.run(words, env=env, stdin=stdin, timeout_s=timeout_s)


def absolute(script: Path) -> str:
    return os.path.abspath(script)
