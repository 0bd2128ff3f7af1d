"""Running PEP 723 scripts in a box with the interpreter that was provisioned for them.

The interpreter is executed directly, with no launcher in between, in the box's environment and workspace. The script is
referenced where it is, so its own directory is first on `sys.path`, as with `uv run`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from .contract import ExecResult, Runtime
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
) -> ExecResult:
    """Run `script` cold in a box of this host: one process, one answer.

    Provisioning and the wait for a CPU slot come before the deadline begins; the wait is told in `queue_s` (law 6).
    """
    python = await provision(script)
    words = [os.fspath(python), _absolute(script), *args]
    async with (slots or default_slots()).take() as queue_s:
        result = await runtime.run(words, env=env, stdin=stdin, timeout_s=timeout_s)
    return msgspec.structs.replace(result, queue_s=queue_s)


def _absolute(script: Path) -> str:
    return os.path.abspath(script)
